"""The results of mutant runs, kept as JSON; and the tests that may rely on them."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import msgspec

# So many killers of a mutant are named; of more, the files are.
_NAMED = 3


class Results(msgspec.Struct):
    """The killers of each mutant, and what each test takes if there is no mutant."""

    seconds: dict[str, float] = {}
    killers: dict[str, list[str]] = {}

    @classmethod
    def read(cls, path: Path) -> Results:
        """Read what `write` wrote."""
        return msgspec.json.decode(path.read_bytes(), type=cls)

    def write(self, path: Path) -> None:
        """Write a file atomically."""
        partial = path.with_name(f"{path.name}.partial")
        partial.write_bytes(msgspec.json.format(msgspec.json.encode(self), indent=1))
        partial.replace(path)

    def cheapest(self, mutant: str) -> list[str]:
        """Return the killers of a mutant, the quickest first."""
        return sorted(self.killers[mutant], key=lambda test: (self.seconds.get(test, 0.0), test))

    def line(self, mutant: str) -> str:
        """Return a mutant's killers in a line."""
        found = self.cheapest(mutant)
        if not found:
            return f"{mutant}: SURVIVED"
        if len(found) <= _NAMED:
            return f"{mutant}: {', '.join(map(self._timed, found))}"
        files = Counter(test.partition("::")[0] for test in found)
        of_files = ", ".join(f"{count} in {name}" for name, count in files.most_common())
        return f"{mutant}: {len(found)} tests, first {self._timed(found[0])}; {of_files}"

    def _timed(self, test: str) -> str:
        return f"{test} ({self.seconds.get(test, 0.0):.1f} s)"


def verdicts(results: Results, candidates: list[str]) -> list[tuple[bool, str]]:
    """Return for each candidate whether it may be deleted, and a line with the reason.

    A candidate is a test, or a function or a file for all of its tests. It may be deleted if every
    mutant that it kills is also killed by a test that is not a candidate.
    """
    going = {test for test in results.seconds if any(_is_of(test, each) for each in candidates)}
    found = []
    for candidate in candidates:
        own = {test for test in going if _is_of(test, candidate)}
        if not own:
            found.append((False, f"{candidate}: was run with no mutant"))
            continue
        lines, may_go = [], True
        for mutant, killers in results.killers.items():
            if own.isdisjoint(killers):
                continue
            others = [test for test in results.cheapest(mutant) if test not in going]
            may_go &= bool(others)
            lines.append(f"{mutant} by {others[0]}" if others else f"{mutant} by NOTHING ELSE")
        verdict = "may go" if may_go else "MUST STAY"
        why = f"killed also: {'; '.join(lines)}" if lines else "it kills no mutant"
        found.append((may_go, f"{candidate}: {verdict}; {why}"))
    return found


def _is_of(test: str, candidate: str) -> bool:
    """Whether a test is the one that is named, a case of it, or in the file that is named."""
    return test == candidate or test.startswith((f"{candidate}[", f"{candidate}::"))
