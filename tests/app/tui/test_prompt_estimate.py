from app.tui.screens.drafting import Estimate, PromptEstimator, estimate_line


def test_without_a_measured_prompt_nothing_is_said_of_time():
    estimate = PromptEstimator().estimate("x" * 400)
    assert estimate == Estimate(108, False, 0, None)
    assert estimate_line(estimate) == "about 108 tokens"


def test_what_the_engine_counted_is_exact_until_it_changes():
    estimator = PromptEstimator()
    estimator.learn_count("a b c", 12, 0)
    assert estimator.estimate("a b c") == Estimate(12, True, 0, None)
    assert estimator.estimate("a b c, and some more") == Estimate(16, False, 0, None)
    assert estimate_line(estimator.estimate("a b c")) == "12 tokens"


def test_bytes_per_token_are_learnt_from_two_counts_that_differ_enough():
    estimator = PromptEstimator()
    estimator.learn_count("x" * 10, 15, 0)
    estimator.learn_count("x" * 30, 17, 0)
    assert estimator.bytes_per_token == 4.0
    estimator.learn_count("x" * 630, 317, 0)
    assert estimator.bytes_per_token == 2.0
    estimator.forget_text()
    assert estimator.estimate("x" * 200).tokens == 108


def test_the_rate_is_that_of_the_last_prompts_and_short_ones_do_not_count():
    estimator = PromptEstimator()
    estimator.learn_read(3, 10.0)
    assert estimator.prefill_tps is None
    estimator.learn_read(100, 10.0)
    estimator.learn_read(300, 10.0)
    assert estimator.prefill_tps == 20.0
    estimator.learn_count("x", 840, 0)
    assert estimate_line(estimator.estimate("x")) == "840 tokens, about 42 s"
    estimator.learn_count("x", 15, 0)
    assert estimate_line(estimator.estimate("x")) == "15 tokens, under 1 s"
    for _ in range(5):
        estimator.learn_read(100, 1.0)
    assert estimator.prefill_tps == 100.0


def test_what_is_read_ahead_costs_no_more_time():
    estimator = PromptEstimator()
    estimator.learn_read(100, 10.0)
    estimator.learn_count("x", 840, 800)
    assert estimate_line(estimator.estimate("x")) == "840 tokens, 800 read ahead, about 4 s"


def test_another_model_has_other_figures():
    estimator = PromptEstimator()
    estimator.learn_read(100, 10.0)
    estimator.learn_count("x" * 10, 15, 0)
    estimator.learn_count("x" * 610, 315, 0)
    estimator.forget_model()
    assert estimator.estimate("x" * 40) == Estimate(18, False, 0, None)


def test_text_beyond_ascii_is_counted_in_bytes_and_surrogates_do_no_harm():
    assert PromptEstimator().estimate("ä" * 40).tokens == 28
    assert PromptEstimator().estimate("\ud800").tokens >= 1
