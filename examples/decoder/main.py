"""Continues a text, letter by letter, with a decoder whose cache stays in the session.

python examples/decoder/main.py "A plan is" [--letters 200] [--device cpu] [--model decoder.onnx]
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

import dataflow as df

HERE = Path(__file__).parent
LETTERS = [chr(code) for code in range(32, 127)]


def encoded(text: str) -> list[int]:
    """The numbers of letters; of those that the model doesn't know, a question mark's."""
    return [ord(letter) - 32 if " " <= letter <= "~" else ord("?") - 32 for letter in text]


def generate(session: df.Session, prompt: str, count: int) -> Iterator[str]:
    """The letters that follow, each the likeliest; the session keeps what was read, so each is fed once."""
    session.reset()
    ids = encoded(prompt)
    for _ in range(count):
        logits = session.run({"input_ids": np.array([ids])})["logits"]
        ids = [int(logits[0, -1].argmax())]
        yield LETTERS[ids[0]]


def main() -> None:
    """Prints what follows a prompt."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("prompt", nargs="?", default="A plan is")
    parser.add_argument("--letters", type=int, default=200, help="how many to add")
    parser.add_argument("--device", help="by default the best available")
    parser.add_argument("--model", default=str(HERE / "decoder.onnx"))
    arguments = parser.parse_args()

    model = df.load(arguments.model)
    session = df.Session(model, arguments.device, state=df.cache_state(model))
    print(arguments.prompt, end="", flush=True)
    begin = time.perf_counter()
    times = []
    for letter in generate(session, arguments.prompt, arguments.letters):
        print(letter, end="", flush=True)
        times.append(time.perf_counter())
    taken = times[-1] - begin
    later = np.diff(times[len(times) // 2 :])  # after plans were made
    print(f"\n\n{len(times)} letters in {taken:.2f} s; {1 / np.median(later):.0f} letters a second once planned")


if __name__ == "__main__":
    main()
