"""Run `check` on each mutant of posenc's own arithmetic, each in a process of its own, and tell what survives.

    python benchmarks/mutations/run.py [--keep FOLDER] [--since COMMIT] [--write] [--only PART] [--processes N]

The parent imports everything once and forks a child for each mutant, which takes the change into the imported package,
builds the subjects that run the changed line, the cheapest first, and checks them until one is not found right.
With --keep it goes on where it was stopped, as long as neither the file, the checks nor these programs have changed;
with --trust found, too, what an earlier check found stays found, since checks only grow, and with --trust all the word
of an earlier check holds for the others as well, which is too low. With --since a commit's RESULTS.md is taken for what
was found then, in functions that are the same now.
"""

import argparse
import gc
import json
import math
import os
import resource
import sys
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from types import MappingProxyType
from typing import Any

for _library in ("OMP", "MKL"):  # one thread of arithmetic, in threads that laws start as well
    os.environ[f"{_library}_NUM_THREADS"] = "1"

import torch  # noqa: E402

torch.set_num_threads(1)

import keeping  # noqa: E402
import patching  # noqa: E402
import results  # noqa: E402
from choosing import candidates  # noqa: E402
from forking import forked  # noqa: E402
from mutants import Mutant, mutants  # noqa: E402
from since import Since  # noqa: E402
from subjects import Subject, subjects  # noqa: E402

from posenc import verify  # noqa: E402
from posenc.verify import laws as verify_laws  # noqa: E402

FOLDERS = ("encodings", "families", "frequencies")
FILES = ("kernels/eager.py", "positions/text.py", "positions/images.py")
SECONDS = 5.0  # of processor time, beyond twice what the correct code takes while it is watched
WALL = 1800.0  # seconds, for what waits for ever; a busy machine must not kill anything
MEMORY = 6 * 2**30  # bytes beyond what the parent has
SHARE = 0.9  # of all mutants, those that are proven equivalent included, which a run has to find
WARM = ("encoding: rope, 0", "encoding: alibi, 0", "encoding: sinusoidal, 0", "rope_fn: half", "cached_model: rope")
WRONG = ("fail", "raises", "hangs", "cannot_tell")


def files() -> list[str]:
    """Return the files whose arithmetic is changed, below src/posenc."""
    found = [path for folder in FOLDERS for path in sorted((patching.ROOT / folder).glob("*.py"))]
    return [str(path.relative_to(patching.ROOT)) for path in found if path.name != "__init__.py"] + list(FILES)


def _status(subject: Subject, *, whole: bool = False) -> tuple[str, str]:
    """Return what `check` says of a subject that is built anew, and its first cause.

    Of an encoding's laws `check` tells all that are broken; here the first ends it, unless `whole`.
    """
    torch.manual_seed(0)
    try:
        built = subject.build()
        if subject.convention == "encoding" and not whole:
            broken = next(verify_laws.breaks(built), None)
            return ("fail", f"laws.{broken.law.replace(' ', '_')}") if broken else ("pass", "")
        report = verify.check(built, convention=subject.convention, spec=subject.spec)
    except BaseException as error:
        return "raises", f"{type(error).__name__}: {error}"[:200]
    return report.status, report.causes[0].code if report.causes else ""


def warm(all_subjects: dict[str, Subject]) -> None:
    """Import what checks import on the way, so that no child has to; nothing is computed here, and so nothing kept."""

    def work(_: None) -> Iterator[Any]:
        for name in WARM:
            _status(all_subjects[name], whole=True)
        yield list(sys.modules)

    for _, said in forked([None], work, 1, 300.0):
        for name in said[0] if said else []:
            with suppress(Exception):  # of optional parts
                import_module(name)


def baseline(all_subjects: dict[str, Subject], n: int) -> dict[str, Any]:
    """Return (status, seconds, lines) of each correct subject.

    Raises:
        AssertionError: One is not found right, so that no mutant can be judged by it.
    """

    def watched(_: None) -> Iterator[Any]:  # one process takes the package in which statements are noted
        seen = {file: patching.watch(file) for file in files()}

        def work(name: str) -> Iterator[Any]:
            start = time.process_time()
            status = _status(all_subjects[name], whole=True)
            yield name, status, time.process_time() - start, {file: lines for file, lines in seen.items() if lines}

        for _, said in forked(list(all_subjects), work, n, 120.0):
            yield from said

    said = next(said for _, said in forked([None], watched, 1, math.inf))
    found = {name: rest for name, *rest in said}
    wrong = {name: found.get(name, ["died"])[0] for name in all_subjects}
    wrong = {name: status for name, status in wrong.items() if status[0] in (*WRONG, "d")}
    known = [name for name in wrong if name in found]  # once more, should a busy machine have disturbed it
    for name, said in forked(known, lambda name: iter([_status(all_subjects[name], whole=True)]), n, 120.0):
        if said and said[0][0] not in WRONG:
            print(f"{name} was found {wrong.pop(name)} at first, and right when it was asked again", flush=True)
            found[name][0] = said[0]
    assert not wrong, f"correct subjects that are not found right: {wrong}"
    return found


def _judged(all_subjects: dict[str, Subject], known: dict[str, Any]) -> Callable[[Any], Iterator[Any]]:
    """Return the job that checks a mutant by subject after subject until one is not found right."""

    def work(job: tuple[Mutant, list[str]]) -> Iterator[Any]:
        mutant, names = job
        held = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (held + MEMORY,) * 2)
        try:
            patching.put(mutant)
        except patching.RefusedError as error:
            yield "", "raises", f"{error}"
            return
        except Exception:
            yield "", "broken", traceback.format_exc()
            return
        for name in names:
            usage = resource.getrusage(resource.RUSAGE_SELF)
            allowed = usage.ru_utime + usage.ru_stime + SECONDS + 2 * known[name][1]
            resource.setrlimit(resource.RLIMIT_CPU, (int(allowed) + 1, resource.RLIM_INFINITY))
            yield name, "hangs", ""  # unless something follows
            status, cause = _status(all_subjects[name])
            yield name, status, cause
            if status in WRONG:
                return

    return work


def judge(
    chosen: Iterable[Mutant],
    known: dict[str, Any],
    all_subjects: dict[str, Subject],
    n: int,
    before: Mapping[keeping.Site, Sequence[str]] = MappingProxyType({}),
) -> Iterator[tuple[Mutant, str, str, str]]:
    """Yield (mutant, fate, subject, cause) of each mutant of a file: WRONG, "survives", or "unreached".

    Args:
        before: How each was judged earlier, by its site: the subject by which it was found goes first.

    Raises:
        AssertionError: A change cannot be made.
    """
    jobs = [(mutant, _first(candidates(mutant, known, all_subjects), before.get(mutant.site))) for mutant in chosen]
    yield from ((mutant, "unreached", "", "") for mutant, names in jobs if not names)
    for (mutant, names), said in forked([job for job in jobs if job[1]], _judged(all_subjects, known), n, WALL):
        name, status, cause = said[-1] if said else ("", "hangs", "")
        assert status != "broken", f"{mutant} cannot be made: {cause}"
        if status in WRONG:
            yield mutant, status, name, cause
            continue
        print(f"  {mutant.file}:{mutant.line} {mutant.function}: {mutant.change} survives", flush=True)
        yield mutant, "survives", f"{len(names)}", ""


def _first(names: list[str], before: Sequence[str] | None) -> list[str]:
    """Return the subjects, the one before the others by which a mutant was found earlier."""
    found = [name for name in names if before is not None and before[0] in WRONG and name == before[1]]
    return found + [name for name in names if name not in found]


def prepared(keep: keeping.Kept, n: int) -> tuple[dict[str, Subject], dict[str, Any]]:
    """Return all subjects, and what is known of them while they are correct."""
    warnings.simplefilter("ignore")
    for family in {*verify.FAMILIES.values(), "codes"}:
        import_module(f"posenc.verify.{family}")
    patching.set_truth_apart()
    everything = subjects()
    warm(everything)
    gc.collect()
    gc.freeze()
    known = keep.known() or baseline(everything, n)
    keep.keep_known(known)
    return everything, known


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--json", type=Path)
    parser.add_argument("--keep", type=Path, help="a folder that keeps what is judged, so that a run can go on later")
    parser.add_argument("--trust", choices=("found", "all"), help="of what earlier checks judged; judge the others")
    parser.add_argument("--since", help="a commit, whose RESULTS.md says what was found in what has not changed since")
    parser.add_argument("--write", action="store_true", help="write RESULTS.md")
    parser.add_argument("--only", default="", help="files that hold this in their names")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    options = parser.parse_args()
    start = time.monotonic()
    keep = keeping.Kept(options.keep, patching.ROOT)
    everything, known = prepared(keep, options.processes)
    print(f"{len(known)} correct subjects in {time.monotonic() - start:.0f} s", flush=True)
    rows, trusted, earlier = [], Counter[bool](), Since(options.since, patching.ROOT) if options.since else None
    for file in files():
        if options.only not in file:
            continue
        source = (patching.ROOT / file).read_text()
        made = mutants(file, source)
        done, before = keep.judged(file), keep.before(file)
        if options.trust:
            asked = {m.site for m in made if not m.excluded} - done.keys()
            old = {site: before[site] for site in asked & before.keys()}
            old = {site: fate for site, fate in old.items() if options.trust == "all" or fate[0] in WRONG}
            trusted.update(fate[0] in WRONG for fate in old.values() if fate[0] != "unreached")
            done = old | done
        if earlier is not None:
            done = {m.site: ["before", "", ""] for m in earlier.found(file, source, made)} | done
        left = [m for m in made if not m.excluded and m.site not in done]
        for mutant, *fate in judge(left, known, everything, options.processes, before):
            done[mutant.site] = fate
            keep.keep(file, mutant.site, fate)
        here = [results.row(m, *(("excluded", "", m.excluded) if m.excluded else done[m.site])) for m in made]
        print(f"{file}: {results.summary(here)}, after {time.monotonic() - start:.0f} s", flush=True)
        rows += here
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1))
    if options.write:
        (Path(__file__).parent / "RESULTS.md").write_text(results.page(rows, SECONDS, (trusted[True], trusted[False])))
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    print(results.summary(rows), f"({used.ru_utime + used.ru_stime:.0f} s of processor time)")
    bare = [row for row in rows if results.counts(row) and row["reason"] == results.NO_REASON]
    for row in bare:
        print(f"no reason is given: {row['file']}:{row['line']} {row['function']}: {row['change']} ({row['fate']})")
    sys.exit(1 if bare or results.share(rows) < SHARE else 0)


if __name__ == "__main__":
    main()
