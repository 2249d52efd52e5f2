"""Results of long runs: what is kept of each, and the tables made from them.

    python benchmarks/results.py keep RUN NAME                     config.json and metrics.jsonl, as they grow
    python benchmarks/results.py finish RUN NAME --command "…"     the same, and the test part, read once: result.json
                                                 [--dynamic]       (with dynamic evaluation, too)
    python benchmarks/results.py tables                            docs/results.md and README.md from all result.json

RUN is a training run's folder; NAME a folder in benchmarks/runs. Of the updates in metrics.jsonl about MOST are kept,
and all validations. Weights stay out.
"""

from __future__ import annotations

import argparse
import json
import math
import re
import subprocess
import textwrap
from pathlib import Path
from typing import Any

from hmrnn.cli.bench import machine
from hmrnn.config import SMALLEST_SIGMA as USUAL_FLOOR

HERE = Path(__file__).parent
RUNS = HERE / "runs"
MOST = 2000  # updates of a run that are kept in its metrics.jsonl
BEGIN, END = "<!-- results: python benchmarks/results.py tables -->", "<!-- end of results -->"
UNITS = {
    "ptb": "Penn Treebank, bits/char.",
    "text8": "text8, bits/char.",
    "enwik8": "enwik8, bits/char.",
    "iam-ondb": "IAM-OnDB, nats/line",
}
PAPER = {  # what its tables have for each of these runs, in the order in which ours are shown
    "ptb-hm": "1.24",
    "ptb-lstm": "1.29",
    "ptb-best": "1.24",
    "ptb-paper": "1.24",
    "text8-hm": "1.29",
    "text8-lstm": "–",
    "enwik8-hm": "1.32",
    "iam-hm": "1137, 1167",
    "iam-lstm": "1081",
}
ORDER = list(PAPER)
DIFFERS = {  # from the paper, beyond docs/deviations.md
    "ptb-best": "layer sizes, guidance, dropout",
    "ptb-paper": "what the paper leaves open",
    "ptb-lstm": "dropout",
    "text8-lstm": "one epoch",
    "iam-lstm": "split, dropout",
    "iam-hm": "split, guidance, dropout",
    "text8-hm": "guidance, one epoch",
    "enwik8-hm": "guidance, one epoch",
}


def keep(run: Path, name: str) -> Path:
    """Copies what is small."""
    folder = RUNS / name
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_bytes((run / "config.json").read_bytes())
    records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    stride = max(1, len(records) // MOST)
    kept = [r for r in records if "learning_rate" not in r or r["update"] % stride == 0 or r is records[-1]]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in kept))
    return folder


def finish(run: Path, name: str, command: str, cores: int, dynamic: bool = False) -> None:
    """Reads the test part, once, and writes what came of it. `dynamic`: dynamic evaluation, too."""
    result = RUNS / name / "result.json"
    if result.exists():
        raise SystemExit(f"{result} is there: the test part of this run was read. Delete it if it was read by mistake")
    folder = keep(run, name)
    config = json.loads((folder / "config.json").read_text())
    records = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    last = records[-1]
    answer = evaluated(run, *(["--dynamic", "auto"] if dynamic else []))
    measured = {key: answer[key] for key in ("bits_per_character", "log_likelihood") if key in answer}
    if dynamic:
        measured["dynamic"] = {key: answer["dynamic"][key] for key in ("bits_per_character", "eta", "lambda")}
    if "log_likelihood" in answer:  # a lower floor gains likelihood by itself, so both are told
        usual = evaluated(run, "--sigma-floor", str(USUAL_FLOOR))
        measured["log_likelihood_at_usual_floor"] = usual["log_likelihood"]
    content: dict[str, Any] = {
        "data": config["data"]["data"],
        "model": config["model"],
        "hidden_sizes": config["hidden_sizes"],
        "weights": weights_in(run),
        "split": answer["split"],
        **measured,
        "best_validation": min(r[key] for r in records for key in ("valid_bits", "valid_nats") if key in r),
        "updates": last["update"],
        "epochs": last["epoch"],
        "hours": last["minutes"] / 60,
        "cores": cores,
        "processor": machine()["processor"],
        "precision": config["precision"],
        "seed": config["training"]["seed"],
        "commit": commit_of(run),
        "command": command,
    }
    result.write_text(json.dumps(content, indent=2) + "\n")
    print(json.dumps(content))


def evaluated(run: Path, *flags: str) -> dict[str, Any]:
    command = ["hmrnn", "eval", str(run), "--json", *flags]
    told = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return dict(json.loads(told.splitlines()[-1]))


def weights_in(run: Path) -> int:
    from safetensors import safe_open

    with safe_open(run / "model.safetensors", "pt") as file:
        shapes = {name: file.get_slice(name).get_shape() for name in file.keys()}  # noqa: SIM118
    # mean and deviation are of the data: not learnt
    return sum(math.prod(shape) for name, shape in shapes.items() if name not in ("mean", "deviation"))


def commit_of(run: Path) -> str:
    """Of the clone that trained it: the run's folder has its name in the file `commit`, or this repository's."""
    noted = run / "commit"
    if noted.exists():
        return noted.read_text().strip()
    return subprocess.run(
        ["git", "rev-parse", "HEAD"], check=True, capture_output=True, text=True, cwd=HERE
    ).stdout.strip()


def results() -> list[tuple[str, dict[str, Any]]]:
    found = {path.parent.name: json.loads(path.read_text()) for path in RUNS.glob("*/result.json")}
    return sorted(found.items(), key=lambda item: (ORDER.index(item[0]) if item[0] in ORDER else len(ORDER), item[0]))


def full_table() -> str:
    head = "| run | test | boundaries | model | weights | updates | epochs | hours | cores | precision | seed |"
    lines = [head, "|---" * 11 + "|"]
    for name, r in results():
        lines.append(
            f"| `{name}` | {measure(r)} | {detector_rates(name)} | {r['model']} {shape(r)} | {r['weights']:,} | "
            f"{r['updates']:,} | {r['epochs']:.1f} | {r['hours']:.1f} | {r['cores']} | {r['precision']} | {r['seed']} |"
        )
    commands = [
        f"# {name}, commit {r['commit'][:7]}, {r['processor']}\n{continued(r['command'])}" for name, r in results()
    ]
    return "\n".join([*lines, "", "```sh", *commands, "```"])


def continued(command: str) -> str:
    """In lines that fit the page, broken before flags, all but the last ending in a backslash."""
    whole = re.sub(" (?!--)", "\0", command)  # a flag stays with its value
    lines = textwrap.wrap(whole, 86, break_long_words=False, break_on_hyphens=False)
    return " \\\n    ".join(lines).replace("\0", " ")


def short_table() -> str:
    lines = ["| test set | model | paper | ours | trained for | what differs |", "|---" * 6 + "|"]
    for name, r in results():
        figure = f"{bits(r)}{with_dynamic(r)}" if "bits_per_character" in r else f"{r['log_likelihood']:.0f}"
        lines.append(
            f"| {UNITS.get(r['data'], r['data'])} | {r['model']} {shape(r)} | {PAPER.get(name, '–')} | {figure} | "
            f"{r['epochs']:.0f} epochs, {r['hours'] * r['cores']:.1f} core h | "
            f"{DIFFERS.get(name, 'guidance, dropout')} |"
        )
    return "\n".join(lines)


def shape(result: dict[str, Any]) -> str:
    """3×512, or the units of each layer if they differ."""
    sizes = result["hidden_sizes"]
    return f"{len(sizes)}×{sizes[0]}" if len(set(sizes)) == 1 else "/".join(map(str, sizes))


def detector_rates(name: str) -> str:
    """How often the detector of each layer fired at the best validation."""
    records = (json.loads(line) for line in (RUNS / name / "metrics.jsonl").read_text().splitlines())
    validations = [r for r in records if "valid_rates" in r]
    if not validations:
        return "–"
    best = min(validations, key=lambda r: r["valid_bits"] if "valid_bits" in r else r["valid_nats"])
    return ", ".join(f"{rate:.3f}" for rate in best["valid_rates"]) or "–"


def measure(result: dict[str, Any]) -> str:
    if "bits_per_character" in result:
        return f"{bits(result)} bits per character{with_dynamic(result)}"
    usual = result["log_likelihood_at_usual_floor"]
    return f"{result['log_likelihood']:.0f} nats a line ({usual:.0f} with σ ≥ e⁻⁶)"


def bits(result: dict[str, Any]) -> str:
    return f"{result['bits_per_character']:.3f}"


def with_dynamic(result: dict[str, Any]) -> str:
    return f" ({bits(result['dynamic'])} with dynamic evaluation)" if "dynamic" in result else ""


def tables() -> None:
    for path, table in (
        (HERE.parent / "docs" / "results.md", full_table()),
        (HERE.parent / "README.md", short_table()),
    ):
        text = path.read_text()
        if BEGIN not in text:
            continue
        start, end = text.index(BEGIN), text.index(END)
        path.write_text(f"{text[:start]}{BEGIN}\n{table}\n{text[end:]}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="what", required=True)
    for what in ("keep", "finish"):
        command = commands.add_parser(what)
        command.add_argument("run", type=Path)
        command.add_argument("name")
        if what == "finish":
            command.add_argument("--command", required=True, help="the command that trained it")
            command.add_argument("--cores", type=int, default=1, help="that it was trained on (default 1)")
            command.add_argument("--dynamic", action="store_true", help="measure dynamic evaluation, too")
    commands.add_parser("tables")
    asked = parser.parse_args()
    if asked.what == "keep":
        keep(asked.run, asked.name)
    elif asked.what == "finish":
        finish(asked.run, asked.name, asked.command, asked.cores, asked.dynamic)
    else:
        tables()


if __name__ == "__main__":
    main()
