from app.tui.chat.draft_cost import PromptEstimator


def test_without_a_measured_prompt_nothing_is_said_of_time():
    assert PromptEstimator().line("x" * 400) == "about 108 tokens"


def test_what_the_engine_counted_is_exact_until_it_changes():
    estimator = PromptEstimator()
    estimator.learn_count("a b c", 12, 0)
    assert estimator.line("a b c") == "12 tokens"
    assert estimator.line("a b c, and some more") == "about 16 tokens"


def test_an_estimate_of_files_holds_until_the_engine_has_counted():
    estimator = PromptEstimator()
    estimator.suppose("x" * 4000, 700)
    assert estimator.line("x" * 4000) == "about 700 tokens"
    assert estimator.line("x" * 4040) == "about 710 tokens"
    estimator.learn_count("x" * 4000, 812, 0)
    assert estimator.line("x" * 4000) == "812 tokens"


def test_bytes_per_token_are_learnt_from_two_distant_counts():
    estimator = PromptEstimator()
    estimator.learn_count("x" * 10, 15, 0)
    estimator.learn_count("x" * 30, 17, 0)
    assert estimator.bytes_per_token == 4.0
    estimator.learn_count("x" * 630, 317, 0)
    assert estimator.bytes_per_token == 2.0
    estimator.forget_text()
    assert estimator.line("x" * 200) == "about 108 tokens"


def test_the_rate_is_that_of_the_last_prompts_without_short_ones():
    estimator = PromptEstimator()
    estimator.learn_read(3, 10.0)
    assert estimator.prefill_tps is None
    estimator.learn_read(100, 10.0)
    estimator.learn_read(300, 10.0)
    assert estimator.prefill_tps == 20.0
    estimator.learn_count("x", 840, 0)
    assert estimator.line("x") == "840 tokens, about 42 s"
    estimator.learn_count("x", 15, 0)
    assert estimator.line("x") == "15 tokens, under 1 s"
    for _ in range(5):
        estimator.learn_read(100, 1.0)
    assert estimator.prefill_tps == 100.0


def test_what_is_read_ahead_costs_no_more_time():
    estimator = PromptEstimator()
    estimator.learn_read(100, 10.0)
    estimator.learn_count("x", 840, 800)
    assert estimator.line("x") == "840 tokens, 800 read ahead, about 4 s"


def test_another_model_has_other_figures():
    estimator = PromptEstimator()
    estimator.learn_read(100, 10.0)
    estimator.learn_count("x" * 10, 15, 0)
    estimator.learn_count("x" * 610, 315, 0)
    estimator.forget_model()
    assert estimator.line("x" * 40) == "about 18 tokens"


def test_non_ascii_text_is_counted_in_bytes_surrogates_too():
    assert PromptEstimator().line("ä" * 40) == "about 28 tokens"
    assert PromptEstimator().line("\ud800") == "about 8 tokens"
