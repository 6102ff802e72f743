"""Registry of quantised types: one visible line per type, one module each.

Knows which types exist and where they live. Importing this package imports none of them.
"""

QUANTS: dict[str, str] = {
    "F32": "engine.quants.f32",
    "F16": "engine.quants.f16",
    "BF16": "engine.quants.bf16",
    "Q8_0": "engine.quants.q8_0",
    "Q4_0": "engine.quants.q4_0",
    "Q4_1": "engine.quants.q4_1",
    "Q5_0": "engine.quants.q5_0",
    "Q5_1": "engine.quants.q5_1",
    "Q2_K": "engine.quants.q2_k",
    "Q3_K": "engine.quants.q3_k",
    "Q4_K": "engine.quants.q4_k",
    "Q5_K": "engine.quants.q5_k",
    "Q6_K": "engine.quants.q6_k",
    "IQ4_NL": "engine.quants.iq4_nl",
    "IQ4_XS": "engine.quants.iq4_xs",
    "IQ3_S": "engine.quants.iq3_s",
    "IQ3_XXS": "engine.quants.iq3_xxs",
    "IQ2_S": "engine.quants.iq2_s",
    "IQ2_XS": "engine.quants.iq2_xs",
    "IQ2_XXS": "engine.quants.iq2_xxs",
    "IQ1_M": "engine.quants.iq1_m",
    "IQ1_S": "engine.quants.iq1_s",
    "MXFP4": "engine.quants.mxfp4",
    "NVFP4": "engine.quants.nvfp4",
    "Q1_0": "engine.quants.q1_0",
    "Q2_0": "engine.quants.q2_0",
    "TQ1_0": "engine.quants.tq1_0",
    "TQ2_0": "engine.quants.tq2_0",
}
