"""The Markdown that a measured reply shows: headings, lists, a table, code, emphasis, over and
over."""

from __future__ import annotations

from collections.abc import Iterator

CHARACTERS_PER_TOKEN = 4
"""About what a token of English text holds."""

MARKDOWN = """\
## How a bicycle stays upright

A moving bicycle steers **into** the fall: the front wheel turns to the side it leans to, and the wheels come back
*under* the rider. Three things help: the `trail` of the fork, the mass ahead of the steering axis, and the rider.

1. **Trail.** The tyre touches the road *after* the steering axis, as with a tea trolley's castors.
2. **Mass.** What lies in front of the axis drops first and turns the bar with it.
3. **You.** Small corrections, a few every second, without thinking.
   - at walking pace they are large
   - at speed they are hardly seen

| speed, km/h | steering | who does the work |
|------------:|:---------|:------------------|
|           5 | wide     | the rider         |
|          12 | small    | rider and fork    |
|          25 | none     | the fork alone    |

```python
def lean_rate(angle: float, speed: float, trail: float = 0.06) -> float:
    \"\"\"How fast the lean grows or dies out.\"\"\"
    gravity, height = 9.81, 1.1
    restoring = speed * speed * trail / height
    for step in range(3):
        restoring *= 1.0 - 0.1 * step  # flex of the frame
    return (gravity / height - restoring) * angle
```

> At about 18 km/h the two terms are equal: below it you balance, above it the bicycle does.

See also [the report of 2011](https://example.org/bicycle) and the `self-stability` of bicycles without gyroscopes.

"""


def pieces() -> Iterator[str]:
    """Yield the text as tokens would bring it, without end."""
    while True:
        for start in range(0, len(MARKDOWN), CHARACTERS_PER_TOKEN):
            yield MARKDOWN[start : start + CHARACTERS_PER_TOKEN]
