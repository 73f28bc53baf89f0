import re
import runpy
from pathlib import Path

import numpy as np
import onnxruntime

import dataflow as df

FOLDER = Path(__file__).parents[2] / "examples/decoder"


def test_the_example_prints_what_follows(monkeypatch, capsys):
    monkeypatch.syspath_prepend(FOLDER)
    monkeypatch.setattr("sys.argv", ["main.py", "A session", "--device", "cpu", "--letters", "24"])
    runpy.run_path(str(FOLDER / "main.py"), run_name="__main__")
    text, figures = capsys.readouterr().out.split("\n\n")
    assert text.startswith("A session") and len(text) == len("A session") + 24
    assert figures.startswith("24 letters in")


def test_the_code_of_the_readme_generates(monkeypatch):
    folder = FOLDER.parents[1]
    monkeypatch.chdir(folder)
    section = (folder / "README.md").read_text("utf-8").split("## A decoder and its cache")[1]
    names = {"df": df, "np": np}
    exec(re.search(r"```python\n(.*?)```", section, re.DOTALL)[1], names)
    assert names["ids"].shape == (1, 1)
    assert names["saved"]["past_key_values.0.key"].shape[2] == 4 + 19


def test_a_letter_follows_from_all_before_it(monkeypatch):
    """The cache changes nothing: onnxruntime finds the same letters from the whole text each time."""
    example = runpy.run_path(str(FOLDER / "main.py"))
    model = df.load(str(FOLDER / "decoder.onnx"))
    session = df.Session(model, ["cpu"], state=df.cache_state(model))
    other = onnxruntime.InferenceSession(str(FOLDER / "decoder.onnx"), providers=["CPUExecutionProvider"])
    empty = {v.name: np.zeros((1, *v.shape[1:2], 0, v.shape[3]), np.float32) for v in other.get_inputs()[1:]}
    for prompt in ("The planner", "x"):
        found = "".join(example["generate"](session, prompt, 12))
        for count, letter in enumerate(found):
            ids = np.array([example["encoded"](prompt + found[:count])])
            (logits,) = other.run(["logits"], {"input_ids": ids, **empty})
            assert example["LETTERS"][int(logits[0, -1].argmax())] == letter
