"""Folders of adapters whose writing ends early: what is loaded is what was saved before or afterwards, or refused."""

from pathlib import Path

import numpy as np
import pytest

import dataflow as df

DIGITS = Path(__file__).parents[2] / "examples/digits"


def adapted(base, alpha, seed):
    model = df.lora(base, rank=2, alpha=alpha, targets="*")
    random = np.random.default_rng(seed)
    for adapter in model.adapters:
        for name in adapter.tensors:
            parameter = model.parameters[name]
            parameter.set(random.standard_normal(parameter.array.shape).astype(np.float32) / 10)
    return model


@pytest.mark.parametrize(("method", "passed"), [("write_text", 0), ("replace", 0), ("replace", 1)])
def test_tensors_never_meet_the_settings_of_others(tmp_path, monkeypatch, method, passed):
    base, x = df.load(str(DIGITS / "digits5.onnx")), {"x": np.load(DIGITS / "digits.npz")["x"][:8]}
    before, after = adapted(base, 4, 0), adapted(base, 32, 1)
    df.save_adapters(before, tmp_path)
    real, calls = getattr(Path, method), []

    def ends(*args, **options):
        calls.append(args)
        if len(calls) > passed:
            raise OSError("the end")
        return real(*args, **options)

    with monkeypatch.context() as patch, pytest.raises(OSError, match="the end"):
        patch.setattr(Path, method, ends)
        df.save_adapters(after, tmp_path, overwrite=True)
    try:
        found = df.load_adapters(base, tmp_path)(x)["logits"]
    except (df.InputError, df.ModelError) as error:
        assert "adapter_config.json" in str(error)
    else:
        assert any(np.array_equal(found, each(x)["logits"]) for each in (before, after))
    df.save_adapters(after, tmp_path, overwrite=True)
    np.testing.assert_array_equal(df.load_adapters(base, tmp_path)(x)["logits"], after(x)["logits"])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["adapter_config.json", "adapter_model.safetensors"]
