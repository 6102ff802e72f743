"""Choice of the loop of a kernel that the tables of cycles describe."""

import pytest

from tests.programs.engine.cycles import hot_loop, weights_in

NESTED = """
.LBB0_1:
    movq (%rax), %rcx
.LBB0_2:
    vpmaddubsw (%rdi), %ymm0, %ymm1
    vpmaddubsw 32(%rdi), %ymm0, %ymm2
    jne .LBB0_2
.LBB0_3:
    vpmaddubsw (%rdi), %xmm0, %xmm1
    jne .LBB0_3
    vpmaddubsw (%rdi), %ymm0, %ymm1
    jb .LBB0_1
"""


def test_the_hot_loop_is_the_innermost_that_multiplies_most():
    loop = hot_loop(NESTED)
    assert loop[0] == ".LBB0_2:"
    assert loop[-1].split() == ["jne", ".LBB0_2"]
    assert weights_in(loop) == 64


def test_products_of_two_rows_are_those_of_512_bits():
    loop = [".LBB0_1:", "    vpmaddubsw %zmm1, %zmm0, %zmm2", "    jne .LBB0_1"]
    assert weights_in(loop) == 64


def test_a_kernel_without_products_of_bytes_has_no_hot_loop():
    with pytest.raises(ValueError, match="no loop"):
        hot_loop(".LBB0_1:\n    addq $1, %rax\n    jne .LBB0_1\n")


ARM64 = """
.LBB0_2:
\tsdot\tv1.4s, v2.16b, v3.16b
\tsmull\tv1.8h, v2.8b, v3.8b
\tsmlal2\tv1.8h, v2.16b, v3.16b
\tsmull\tv1.4s, v2.4h, v3.4h
\ttbnz\tx18, #63, .LBB0_2
"""


def test_products_on_arm64_are_those_of_bytes():
    assert weights_in(hot_loop(ARM64)) == 32
