"""Features of the ARM64 processors that tests and models compile for."""

ARMV8 = "+neon,+fp-armv8"
ARM64 = {
    "cortex-a53": ARMV8,
    "cortex-a72": ARMV8,
    "cortex-a76": f"{ARMV8},+lse,+dotprod",
    "neoverse-n1": f"{ARMV8},+lse,+dotprod",
}
