"""A reward of your own, in a file that `pipeline.imports` names.

pipeline: {imports: [samples/rewards/haiku.py]}
method: {reward: {name: haiku}}
"""

from llmclick import REWARDS


@REWARDS.register("haiku")
def haiku(completion: str, row: dict, params: dict) -> float:
    """The share of a haiku's three lines that have 5, 7 and 5 syllables, counted by groups of vowels."""
    lines = [line for line in completion.strip().splitlines() if line.strip()]
    if len(lines) != 3:
        return 0.0
    return sum(syllables(line) == wanted for line, wanted in zip(lines, (5, 7, 5), strict=True)) / 3


def syllables(line: str) -> int:
    """How many groups of vowels the words of a line have."""
    vowels = [letter in "aeiouy" for letter in line.lower()]
    return sum(here and not before for before, here in zip([False, *vowels], vowels, strict=False))
