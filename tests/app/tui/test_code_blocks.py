from app.tui.markdown.code_blocks import code_blocks


def test_blocks_are_found_in_order_without_their_fences() -> None:
    text = "Do\n\n```python\nx = 1\n\ny = 2\n```\nthen\n~~~\n```\nz\n~~~\n"
    assert code_blocks(text) == ["x = 1\n\ny = 2", "```\nz"]


def test_a_block_that_is_still_open_counts() -> None:
    assert code_blocks("```sh\nls") == ["ls"]


def test_a_longer_fence_may_hold_a_shorter_one() -> None:
    assert code_blocks("````md\n```\nin\n```\n````") == ["```\nin\n```"]


def test_inline_code_is_no_block() -> None:
    assert code_blocks("```not a block```\nand `x`") == []
    assert code_blocks("") == []


def test_a_block_in_a_list_loses_the_items_indentation() -> None:
    assert code_blocks("1. First\n\n   ```\n   a\n     b\n   ```\n- ```\n  c\n  ```") == ["a\n  b", "c"]
