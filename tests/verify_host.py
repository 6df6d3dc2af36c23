"""A host in Python for `posenc verify --exec`: it answers calls by one of `programs.cases()`, whose name it gets."""

import copy
import json
import sys

import torch
from torch import Tensor

import programs


def decoded(value, answers):
    if not isinstance(value, dict):
        return value
    if "answer" in value:
        whole = answers[value["answer"]]
        return whole if value["item"] is None else whole[value["item"]]
    dtype = getattr(torch, value["dtype"])
    if dtype.is_complex:
        return torch.view_as_complex(torch.tensor(value["data"]).reshape(*value["shape"], 2)).to(dtype)
    return torch.tensor(value["data"], dtype=dtype).reshape(value["shape"])


def encoded(found):
    if isinstance(found, Tensor):
        numbers = torch.view_as_real(found) if found.is_complex() else found
        return {"dtype": str(found.dtype)[6:], "shape": list(found.shape), "data": numbers.flatten().tolist()}
    if isinstance(found, list | tuple):
        return [encoded(part) for part in found]
    return found if type(found) in (int, float) else None


def called(subject, function, args):
    """Call one of the functions of a subject as its convention says."""
    if function == "rotate_queries_or_keys":
        return subject.rotate_queries_or_keys(args["x"], offset=args["offset"])
    if isinstance(subject, tuple | list):
        subject = subject[0 if function in ("rotary", "table") else 1]
    return subject(end=args["end"]) if "end" in args else subject(*args.values())


def main():
    out, sys.stdout = sys.stdout, sys.stderr
    start = programs.cases()[sys.argv[1]].load().build()
    instances, answers = {}, {}
    for line in sys.stdin:
        call = json.loads(line)
        subject = instances.setdefault(call["instance"], copy.deepcopy(start))
        try:
            args = {name: decoded(value, answers) for name, value in call["args"].items()}
            with torch.no_grad():
                answers[call["call"]] = found = called(subject, call["function"], args)
            answer = {"call": call["call"], "result": encoded(found)}
        except Exception as error:
            answer = {"call": call["call"], "error": f"{type(error).__name__}: {error}"}
        out.write(json.dumps(answer) + "\n")
        out.flush()


if __name__ == "__main__":
    main()
