"""The flags of the commands that use a run: eval, generate, segment, score, figure, plot."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from tyro.conf import Positional, arg
from tyro.constructors import PrimitiveConstructorSpec

from hmrnn.cli.train import bad_usage
from hmrnn.config import ReadingConfig, UsageError, check_size
from hmrnn.domains.text.config import AdaptingConfig
from hmrnn.storage.shipped import located

Run = Annotated[
    Path,
    PrimitiveConstructorSpec(
        nargs=1,
        metavar="RUN",
        instance_from_str=lambda words: located(words[0]),
        is_instance=lambda value: isinstance(value, Path),
        str_from_instance=lambda run: [str(run)],
    ),
]
Reading = Annotated[ReadingConfig, arg(name="")]  # its flags have no prefix
BY_DEFAULT = ReadingConfig()


def kind_of_run(run: Path) -> str:
    """text or strokes."""
    from hmrnn.storage.pretrained import kind_of, read_config

    return kind_of(read_config(run)[0])


def only_for(what: str, **given: bool) -> None:
    """Refuses flags that were given though they are for the other kind of run."""
    wrong = [f"--{name.replace('_', '-')}" for name, is_given in given.items() if is_given]
    if wrong:
        raise UsageError(f"{', '.join(wrong)}: only for runs on {what}")


def reads_text(reading: ReadingConfig) -> dict[str, bool]:
    return {"on_unknown": reading.on_unknown != BY_DEFAULT.on_unknown}


def evaluate(
    run: Positional[Run],
    data: str | None = None,
    split: Literal["train", "valid", "test", "all"] | None = None,
    streams: int = 1,
    temperature: float | Literal["auto"] | None = None,
    dynamic: float | Literal["auto"] | None = None,
    decay: float | None = None,
    data_dir: Path | None = None,
    reading: Reading = BY_DEFAULT,
    json: bool = False,
) -> None:
    """Measure how well a run predicts: a text, in bits per character, with the state carried over the whole text; or
    handwriting, by the average log-likelihood of a line, in nats and in normalised coordinates.

    Args:
        run: Directory of the run; or builtin, the model that comes with hmrnn.
        data: The text: ptb, text8, enwik8, builtin, planted, a file or a folder; of strokes: iam-ondb, builtin or a
            file. By default the run's own.
        split: Which part of it. By default test; all of a file that the run was not trained on.
        streams: Read the text as so many streams side by side. 1 is exact; more are quicker, and each but the first
            starts without a past.
        temperature: Text: tell it with logits divided by this number, too. auto: the one that is best on the validation
            part of the run's text.
        dynamic: Text: tell it of a model that goes on learning as it reads, too, in steps of this size (eta, 0.0005 is
            a start) after each 100 symbols. auto: the size that is best on the validation part. What gradients are
            like is measured on the training part. The run is left as it is.
        decay: With --dynamic: how soon it forgets again what it has learnt (lambda, 0 to 1). By default what is best on
            the validation part.
        data_dir: Where published sets lie. By default where the run found its own, or HMRNN_DATA, or ~/.cache/hmrnn.
        json: Print the answer as one line of JSON.
    """
    with bad_usage():
        check_size("--streams", streams)
        adapting = AdaptingConfig(temperature, dynamic, decay)

    if kind_of_run(run) == "strokes":
        adapts = {"temperature": temperature is not None, "dynamic": dynamic is not None, "decay": decay is not None}
        only_for("text", streams=streams != 1, **adapts, **reads_text(reading))
        from hmrnn.domains.strokes import commands as strokes

        strokes.evaluate(run, data, split=split, data_dir=data_dir, reading=reading, as_json=json)
        return
    from hmrnn.domains.text import commands as text

    text.evaluate(
        run,
        data,
        split=split,
        streams=streams,
        adapting=adapting,
        data_dir=data_dir,
        reading=reading,
        as_json=json,
    )


def generate(
    run: Positional[Run],
    prompt: str = "",
    max_new: int | None = None,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    seed: int | None = None,
    show_boundaries: bool = False,
    prime: Path | None = None,
    bias: float = 0.0,
    lines: int = 1,
    out: Path | None = None,
    animated: bool = False,
    reading: Reading = BY_DEFAULT,
    json: bool = False,
) -> None:
    """Let a run write: text, the prompt and what it makes of it, as it is made; or handwriting, as a drawing or,
    without --out, as JSON lines.

    Args:
        run: Directory of the run; or builtin, the model that comes with hmrnn.
        prompt: What the text starts with.
        max_new: How many symbols to make, by default 500, or how many points of each line, by default 650.
        temperature: Below 1 likely symbols become likelier; 0 always takes the likeliest.
        top_k: Draw from the so many likeliest symbols only.
        top_p: Draw from the likeliest symbols that together have this probability.
        seed: The same seed gives the same text, or the same line; of several lines, the next has the next seed.
        show_boundaries: Mark where segments end: | in layer 1, ‖ in layer 2, ⦀ above.
        prime: Strokes: go on with the first line of this file of JSON lines.
        bias: Strokes: 0 writes as was read; the larger, the neater (Graves, 2013). 1 is a start.
        lines: Strokes: how many lines to write.
        out: Strokes: the drawing: .svg has one path for each stroke of the pen, fit for a plotter; or .png.
        animated: Strokes: an SVG that draws itself.
        json: Print what was made, with its boundaries, as one line of JSON.
    """
    if max_new is not None and max_new < 0:
        raise UsageError(f"--max-new must not be negative; got {max_new}")
    if kind_of_run(run) == "strokes":
        with bad_usage():
            check_size("--lines", lines)
            if not 0 <= bias < float("inf"):
                raise UsageError(f"--bias must not be negative, and finite; got {bias}")
        drawn = {"top_k": top_k is not None, "top_p": top_p is not None, "temperature": temperature != 1.0}
        only_for("text", prompt=prompt != "", show_boundaries=show_boundaries, **drawn, **reads_text(reading))
        from hmrnn.domains.strokes import commands as strokes

        strokes.write(
            run,
            prime=prime,
            lines=lines,
            max_new=650 if max_new is None else max_new,
            bias=bias,
            seed=seed,
            out=out,
            animated=animated,
            reading=reading,
            as_json=json,
        )
        return
    only_for(
        "strokes", prime=prime is not None, bias=bias != 0, lines=lines != 1, out=out is not None, animated=animated
    )
    from hmrnn.domains.text import commands as text
    from hmrnn.domains.text.generation import Sampling

    with bad_usage():
        sampling = Sampling(temperature, top_k, top_p)
    text.write(
        run,
        prompt,
        500 if max_new is None else max_new,
        sampling,
        seed=seed,
        show_boundaries=show_boundaries,
        reading=reading,
        as_json=json,
    )


def segment(
    run: Positional[Run],
    file: Positional[str] = "-",
    format: Literal["text", "json", "html"] = "text",
    vectors: bool = False,
    reading: Reading = BY_DEFAULT,
) -> None:
    """Show the segments that a run finds in a text, while it is read: any length, in constant memory. Or in
    handwriting: in each line of a file of JSON lines.

    Args:
        run: Directory of the run; or builtin, the model that comes with hmrnn.
        file: The text, or the JSON lines; - is standard input.
        format: text: the text with marks, | where a segment of layer 1 ends, ‖ of layer 2, ⦀ above. json: one object, a
            segment a line. html: one page for a browser, of up to 100,000 symbols, that shows every step. Of
            handwriting: text counts the segments of each line, json tells where each ends, html draws them.
        vectors: With each segment's vector (json): the state that its layer hands up at the boundary.
    """
    if kind_of_run(run) == "strokes":
        only_for("text", **reads_text(reading))
        from hmrnn.domains.strokes import commands as strokes

        strokes.segment(run, file, form=format, vectors=vectors, reading=reading)
        return
    from hmrnn.domains.text import commands as text

    text.segment(run, file, form=format, vectors=vectors, reading=reading)


def score(
    run: Positional[Run],
    data: str | None = None,
    gold: Path | None = None,
    split: Literal["train", "valid", "test", "all"] | None = None,
    first: int | None = None,
    all: bool = False,
    data_dir: Path | None = None,
    reading: Reading = BY_DEFAULT,
    json: bool = False,
) -> None:
    """Score the boundaries of each layer against known ones, beside what chance alone would reach.

    Known are the words of the text, between white space and punctuation: a boundary may be meant to fall before, on or
    after what separates them, and each is scored. Of the planted hierarchy, its words and phrases are known. Of
    handwriting, the strokes of the pen are known, and letters and words of the built-in lines.

    Args:
        run: Directory of the run; or builtin, the model that comes with hmrnn.
        data: The text: ptb, text8, enwik8, builtin, planted, a file or a folder. By default the run's own.
        gold: Instead: a file with an utterance a line, words separated by spaces. The run reads it without spaces.
        split: Which part of the text. By default test; all of a file that the run was not trained on.
        first: Only so many symbols, from the start of it.
        all: Show every score and baseline, not only the best F1 of each layer.
        data_dir: Where published sets lie. By default where the run found its own, or HMRNN_DATA, or ~/.cache/hmrnn.
        json: Print the scores as one line of JSON.
    """
    with bad_usage():
        if first is not None:
            check_size("--first", first)
        if gold is not None and (data is not None or split is not None or first is not None):
            raise UsageError("--gold is a text of its own: it can't be combined with --data, --split or --first")
    if kind_of_run(run) == "strokes":
        only_for("text", gold=gold is not None, first=first is not None, **reads_text(reading))
        from hmrnn.domains.strokes import commands as strokes

        strokes.score_run(run, data, split=split, data_dir=data_dir, reading=reading, as_json=json, all_scores=all)
        return
    from hmrnn.domains.text import commands as text

    text.score_run(
        run,
        data,
        gold=gold,
        split=split,
        first=first,
        data_dir=data_dir,
        reading=reading,
        as_json=json,
        all_scores=all,
    )


def figure(
    runs: Positional[tuple[Run, ...]],
    out: Path,
    kind: Literal["all", "boundaries", "norms", "training", "classes", "segments", "density"] = "all",
    strokes: bool = False,
    text: Path | None = None,
    symbols: int = 270,
    line: int = 1,
    data_dir: Path | None = None,
    reading: Reading = BY_DEFAULT,
) -> None:
    """Draw what a run found in a text or in handwriting, and how it was trained: figures for a paper.

    Args:
        runs: Directory of the run, or builtin. With several, their training curves are drawn together, and the first
            one's text.
        out: A folder, for every figure as pdf, svg and png; or one file, whose ending says how.
        kind: boundaries: of every layer under the text. norms: of the hidden states, with the operations. training:
            loss, firing rates and slope. classes: how often each detector fires on which kind of symbol. Of strokes:
            segments: a line coloured by the segments of each layer, and by the strokes of the pen. density: where the
            next point was expected.
        strokes: The figures of handwriting alone: segments and density.
        text: A file. By default the start of the validation part of the run's text.
        symbols: How many of its symbols boundaries and norms show.
        line: Strokes: which line of the validation part.
        data_dir: Where published sets lie. By default where the run found its own, or HMRNN_DATA, or ~/.cache/hmrnn.
    """
    with bad_usage():
        check_size("--symbols", symbols)
        if not runs:
            raise UsageError("say which run to draw")

    if kind_of_run(runs[0]) == "strokes":
        only_for("text", text=text is not None, symbols=symbols != 270, **reads_text(reading))
        from hmrnn.domains.strokes import commands as of_strokes

        if strokes and kind != "all":
            raise UsageError(f"--strokes stands for segments and density: it can't be combined with --kind {kind}")
        kinds = ("segments", "density") if strokes else (kind,)
        of_strokes.figure(runs, out, kinds=kinds, line=line, data_dir=data_dir, reading=reading)
        return
    only_for("strokes", strokes=strokes, line=line != 1)
    from hmrnn.domains.text import commands as of_text

    of_text.figure(
        runs,
        out,
        kinds=(kind,),
        text=text,
        symbols=symbols,
        data_dir=data_dir,
        reading=reading,
    )


def plot(runs: Positional[tuple[Run, ...]], out: Path = Path("curves.png"), json: bool = False) -> None:
    """Draw the learning curves of several runs in one picture: against what was read, and against minutes.

    Runs are on text or on strokes, not both. Of each, config.json and metrics.jsonl are enough; it may still be going
    on.

    Args:
        runs: Directories of runs.
        out: The picture: png, svg or pdf, as its ending says.
        json: Print what was drawn as one line of JSON: for each run its last update, epoch and minutes, and its last
            and best validation.
    """
    if not runs:
        raise UsageError("say which runs to draw")
    from hmrnn.cli.plotting import plot_runs

    plot_runs(runs, out, as_json=json)
