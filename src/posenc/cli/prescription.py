"""The doctor's report as text."""

from typing import Any

from rich.text import Text

from posenc.cli import output

_LABEL = 14  # characters of the column of names


def lay_out(report: dict[str, Any], width: int) -> list[Text]:
    """Return the report's lines: versions, machine, extras, verdict."""
    lines = [Text("Required", "bold"), *_lay_out_required(report)]
    lines += [Text(""), Text("Machine", "bold")]
    for label, fact in _describe_machine(report).items():
        lines.append(Text(output.wrap(fact, width, " " * _LABEL, f"  {label:<{_LABEL - 2}}")))
    lines += _prescribe_memory(report["new_memory"], width)
    lines += [Text(""), Text("Extras", "bold"), *(_lay_out_extra(e, width) for e in report["extras"])]
    return [*lines, Text(""), _conclude(report)]


def _lay_out_required(report: dict[str, Any]) -> list[Text]:
    python = report["python"]
    lines = [
        Text(f"  {'posenc':<{_LABEL - 2}}{report['posenc']['version']:<14}{report['posenc']['path']}"),
        _lay_out_package("python", python, None if python["ok"] else "too old"),
    ]
    for package in report["required"]:
        lines.append(_lay_out_package(package["package"], package, package["problem"]))
        if package["mend"]:
            lines.append(Text(f"  {'':<{_LABEL - 2}}{package['mend']}"))
    return lines


def _lay_out_package(name: str, found: dict[str, Any], problem: str | None) -> Text:
    version = found.get("version") or found.get("installed") or "-"
    line = Text(f"  {name:<{_LABEL - 2}}{version:<14}")
    line.append("ok" if problem is None else problem, "green" if problem is None else "bold red")
    return line.append("" if problem is None else f", needs {found['needs']}")


def _describe_machine(report: dict[str, Any]) -> dict[str, str]:
    machine, torch, compiler = report["machine"], report["torch"], report["compiler"]
    threads = f", torch uses {torch['threads']} threads" if torch else ""
    facts = {
        "platform": machine["platform"],
        "cores": f"{machine['cores']}, {machine['usable_cores']} of them usable{threads}",
    }
    if torch:
        facts["GPU"] = _describe_gpu(torch)
    if compiler["ok"]:
        facts["compiler"] = f"{compiler['path']}, so torch.compile works on the CPU"
    else:
        missing = "no C++ compiler" if compiler["path"] is None else "no Python.h (Python's headers)"
        facts["compiler"] = (
            f"{missing}, so torch.compile does not work on the CPU; on Debian and Ubuntu: apt install g++ python3-dev"
        )
    if report["new_memory"]:
        facts["new memory"] = _describe_memory(report["new_memory"])
    return facts


def _describe_memory(found: dict[str, Any]) -> str:
    if found["problem"]:
        return f"not measured: {found['problem']}"
    faults = f", with {found['faults']:,} page faults" if found["faults"] else ""
    return (
        f"a clone of {found['mib']} MiB takes {found['ratio']:.1f} times as long as a copy into existing memory{faults}"
    )


def _prescribe_memory(found: dict[str, Any] | None, width: int) -> list[Text]:
    """Return what to set if new memory costs much; the setting has its own line, to be copied."""
    if not found or not found["set"]:
        return []
    why = (
        "Freed memory goes back to the system, so new tensors wait for pages. To let a process keep freed memory, "
        "call posenc.reuse_pages() in it, or start it with the variable below; the process then never shrinks."
    )
    return [Text(""), Text(output.wrap(why, width, "  "), "yellow"), Text(f"  {found['set']}")]


def _describe_gpu(torch: dict[str, Any]) -> str:
    if torch["gpus"]:
        return f"{', '.join(torch['gpus'])} (CUDA {torch['built_for_cuda']})"
    if torch["mps"]:
        return "Apple's, through MPS"
    if torch["built_for_cuda"] is None:
        return "none: this torch was built without CUDA"
    return " ".join(["none found", f"(torch was built for CUDA {torch['built_for_cuda']})", *torch["notes"]])


def _lay_out_extra(extra: dict[str, Any], width: int) -> Text:
    line = Text(f"  {extra['name']:<{_LABEL - 2}}{extra['feature']:<39} ")
    if extra["ok"]:
        return line.append("ok", "green")
    needed = ", ".join(_describe_missing(package) for package in extra["missing"])
    indent = " " * _LABEL
    fix = output.wrap(f"needs {needed}: {extra['mend']}", width, indent, indent)
    return line.append("missing", "yellow").append(f"\n{fix}")


def _describe_missing(package: dict[str, Any]) -> str:
    if package["installed"] is None:
        return str(package["package"])
    return f"{package['package']} {package['needs']} ({package['installed']} is {package['problem']})"


def _conclude(report: dict[str, Any]) -> Text:
    if report["ok"]:
        return Text("All required packages are installed; an extra is needed only for its feature.", "green")
    if not report["required"]:
        return Text(
            "posenc is not installed, so its requirements are unknown: pip install -e .",
            "bold red",
        )
    return Text("A required package is missing or does not work: see above.", "bold red")
