"""Texts: encoded and padded as the package tokenizers does it, in few lengths; labels of several kinds."""

from __future__ import annotations

import itertools
import json
import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dataflow as df
from dataflow.ir.types import TensorType
from dataflow.train.data.batch import Request
from dataflow.train.data.buckets import boundaries, ordered
from tests.train.data_models import language_model, text_classifier

tokenizers = pytest.importorskip("tokenizers")
WORDS = [f"w{i}" for i in range(20)]
VOCABULARY = {word: i for i, word in enumerate(["[PAD]", "[UNK]", "[CLS]", "[SEP]", *WORDS])}


def made_tokenizer() -> Any:
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel(VOCABULARY, unk_token="[UNK]"))
    made.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    made.post_processor = tokenizers.processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    return made


def texts(n: int = 40, seed: int = 0, most: int = 40) -> list[str]:
    rng = np.random.default_rng(seed)
    return [" ".join(rng.choice(WORDS, rng.integers(1, most))) for _ in range(n)]


@pytest.fixture
def reviews(tmp_path: Path) -> Path:
    rows = [{"review": t, "stars": "good" if "w1" in t.split() else "bad"} for t in texts()]
    (tmp_path / "reviews.csv").write_text("review,stars\n" + "".join(f"{r['review']},{r['stars']}\n" for r in rows))
    (tmp_path / "reviews.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    made_tokenizer().save(str(tmp_path / "tokenizer.json"))
    return tmp_path


def wanted(*names: str, length: Any = None, dtype: df.DType = df.int64) -> Request:
    shape = (df.Dim("batch"), df.Dim("length") if length is None else length)
    return Request({name: TensorType(dtype, shape) for name in names}, ("labels",))


OPTIONS = {"text": "review", "label": "stars"}
BERT = ("input_ids", "attention_mask", "token_type_ids")


@pytest.mark.parametrize(
    ("config", "most"),
    [
        ({"model_max_length": 12}, 12),
        ({"model_max_length": 12.0}, 12),
        ({"model_max_length": 1e30}, 41),
        ({"model_max_length": 10**30}, 41),
        ({"model_max_length": None}, 41),
        ({}, 41),
    ],
)
def test_a_text_has_as_many_tokens_as_the_config_beside_the_tokenizer_says(
    reviews: Path, config: Any, most: int
) -> None:
    (reviews / "tokenizer_config.json").write_text(json.dumps(config))
    reference = made_tokenizer()
    reference.enable_truncation(most)
    expected = max(len(reference.encode(text).ids) for text in texts())
    assert expected == most or most == 41
    for given in (reviews, reviews / "tokenizer.json"):
        data = df.Dataset(str(reviews / "reviews.csv"), tokenizer=given, **OPTIONS).bound(wanted(*BERT))
        assert max(batch.arrays["input_ids"].shape[1] for batch in data.batches(8)) == expected


def test_a_tokenizer_object_says_its_length_and_a_broken_config_is_refused(reviews: Path) -> None:
    class Fast:
        """As transformers' fast tokenizers are."""

        backend_tokenizer = made_tokenizer()
        model_max_length = 9

    data = df.Dataset(str(reviews / "reviews.csv"), tokenizer=Fast(), **OPTIONS).bound(wanted(*BERT))
    assert max(batch.arrays["input_ids"].shape[1] for batch in data.batches(8)) == 9
    (reviews / "tokenizer_config.json").write_text("{")
    with pytest.raises(df.InputError, match=r"tokenizer_config\.json: can't be read as JSON"):
        df.Dataset(str(reviews / "reviews.csv"), tokenizer=reviews, **OPTIONS).bound(wanted(*BERT)).keys()


@pytest.mark.parametrize("suffix", ["csv", "jsonl"])
def test_batches_are_what_the_package_pads(reviews: Path, suffix: str) -> None:
    if suffix == "jsonl":
        pytest.importorskip("pyarrow")
    dataset = df.Dataset(reviews / f"reviews.{suffix}", tokenizer=reviews, max_length=24, **OPTIONS)
    reference = made_tokenizer()
    reference.enable_truncation(24)
    seen = []
    for batch in dataset.bound(wanted(*BERT)).batches(7):
        reference.enable_padding(length=batch.arrays["input_ids"].shape[1])
        expected = reference.encode_batch([texts()[i] for i in batch.indices])
        np.testing.assert_array_equal(batch.arrays["input_ids"], [e.ids for e in expected])
        np.testing.assert_array_equal(batch.arrays["attention_mask"], [e.attention_mask for e in expected])
        np.testing.assert_array_equal(batch.arrays["token_type_ids"], [e.type_ids for e in expected])
        labels = [int("w1" in texts()[i].split()) for i in batch.indices]
        assert batch.arrays["labels"].tolist() == labels
        assert {a.dtype for a in batch.arrays.values()} == {np.dtype(np.int64)}
        seen += batch.indices.tolist()
    assert sorted(seen) == list(range(40))


def test_pairs_padding_on_the_left_and_positions(reviews: Path) -> None:
    pairs = reviews / "pairs.csv"
    pairs.write_text("a,b,labels\nw1 w2 w3,w4,1\nw5,w6 w7,0\nw1,w2,1\n")
    left = made_tokenizer()
    left.enable_padding(direction="left", pad_id=9)
    request = wanted(*BERT, "position_ids", length=9, dtype=df.int32)
    (batch,) = df.Dataset(pairs, text=["a", "b"], tokenizer=left).bound(request).batches(9)
    left.enable_padding(direction="left", pad_id=9, length=9)
    expected = left.encode_batch([("w1 w2 w3", "w4"), ("w5", "w6 w7"), ("w1", "w2")])
    np.testing.assert_array_equal(batch.arrays["input_ids"], [e.ids for e in expected])
    np.testing.assert_array_equal(batch.arrays["attention_mask"], [e.attention_mask for e in expected])
    mask = batch.arrays["attention_mask"].astype(bool)
    np.testing.assert_array_equal(
        np.where(mask, batch.arrays["token_type_ids"], 0), np.where(mask, [e.type_ids for e in expected], 0)
    )
    assert batch.arrays["position_ids"][2].tolist() == [0, 0, 0, 0, 0, 1, 2, 3, 4]
    assert batch.arrays["input_ids"].dtype == np.int32
    assert left.padding["length"] == 9  # the caller's own is as it was


@pytest.mark.parametrize("count", [1, 2, 3, 4])
def test_boundaries_need_the_least_padding(count: int) -> None:
    rng = np.random.default_rng(count)
    for _ in range(20):
        lengths = rng.integers(1, 60, rng.integers(1, 30))
        rounded = np.minimum(-(-lengths // 8) * 8, 60)
        found = boundaries(lengths, count, 60)
        assert len(found) <= count

        def padded(chosen: Any, rounded: np.ndarray = rounded) -> int:
            return int(np.sort(chosen)[np.searchsorted(np.sort(chosen), rounded)].sum())

        sizes = np.unique(rounded)
        tried = itertools.combinations(sizes, min(count, len(sizes)))
        assert padded(found) == min(padded(t) for t in tried if max(t) == sizes[-1])


def test_one_batch_of_all_is_short_and_each_has_one_length() -> None:
    rng = np.random.default_rng(0)
    buckets = rng.integers(0, 4, 103)
    for generator in (None, np.random.default_rng(1)):
        rows = ordered(np.arange(103), buckets, 8, generator)
        assert sorted(rows) == list(range(103))
        mixed = sum(len({*buckets[rows[i : i + 8]]}) > 1 for i in range(0, 96, 8))
        assert mixed <= 3  # one between each two lengths
    assert ordered(np.arange(103), buckets, 8, np.random.default_rng(1)).tolist() == rows.tolist()


def test_few_plans_are_made_and_reported(reviews: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "dataflow")
    dataset = df.Dataset(reviews / "reviews.csv", tokenizer=reviews, buckets=3, **OPTIONS)
    with df.Trainer(text_classifier(), optimizer=df.optim.AdamW(lr=0.05), devices=["numpy"]) as trainer:
        history = trainer.fit(dataset, epochs=4, batch_size=6, progress=False)
        assert history["loss"][-1] < history["loss"][0]
        shapes = {shapes for (kind, shapes) in trainer.programs.engine.programs if kind[0] == "step"}
        assert len(shapes) <= 4
        assert trainer.classes == {"labels": ["bad", "good"]}
    (said,) = [r.getMessage() for r in caplog.records if "tokens, padded to" in r.getMessage()]
    assert "40 texts of 3 to 40 tokens" in said
    assert "3 plans, and one for a short last batch" in said


def test_given_lengths_and_those_of_the_model(reviews: Path) -> None:
    path = reviews / "reviews.csv"
    lengths = {b.arrays["input_ids"].shape[1] for b in df.Dataset(path, tokenizer=reviews, buckets=[20, 48], **OPTIONS)
               .bound(wanted("input_ids")).batches(5)}  # fmt: skip
    assert lengths == {20, 48}
    with pytest.raises(df.InputError, match="the longest text has 40 tokens; give a length for it"):
        df.Dataset(path, tokenizer=reviews, buckets=[8], **OPTIONS).bound(wanted("input_ids"))
    fixed = df.Dataset(path, tokenizer=reviews, **OPTIONS).bound(wanted("input_ids", length=16))
    assert {b.arrays["input_ids"].shape[1] for b in fixed.batches(5)} == {16}
    renamed = df.Dataset(path, tokenizer=reviews, rename={"input_ids": "tokens", "stars": "labels"}, text="review")
    assert renamed.bound(wanted("tokens")).keys() == ("tokens", "labels")


@pytest.mark.parametrize("how", ["same", "next"])
def test_labels_of_a_language_model(reviews: Path, how: str) -> None:
    dataset = df.Dataset(reviews / "reviews.csv", text="review", tokenizer=reviews, language_model=how)
    for batch in dataset.bound(wanted("input_ids", "attention_mask")).batches(8):
        ids, mask = batch.arrays["input_ids"], batch.arrays["attention_mask"]
        for row, labels in enumerate(batch.arrays["labels"]):
            count = mask[row].sum()
            expected = np.full(len(labels), -100)
            shift = int(how == "next")
            expected[: count - shift] = ids[row, shift:count]
            np.testing.assert_array_equal(labels, expected)


def test_joined_lines_are_blocks_and_a_language_model_learns_them(reviews: Path) -> None:
    (reviews / "lines.txt").write_text("w1 w2 w3 w4\n\n" * 30)
    options = {"tokenizer": reviews, "language_model": "next", "join": True, "max_length": 10}
    dataset = df.Dataset(reviews / "lines.txt", **options)
    stream = [2, 5, 6, 7, 8, 3] * 30
    assert len(dataset) == 18
    (batch,) = dataset.bound(wanted("input_ids")).batches(99)
    assert batch.arrays["input_ids"].ravel().tolist() == stream
    with df.Trainer(language_model(), optimizer=df.optim.AdamW(lr=0.3), devices=["numpy"]) as trainer:
        history = trainer.fit(dataset, epochs=20, batch_size=6, progress=False)
    assert history["loss"][-1] < 0.1


def test_a_decoder_with_a_cache_trains_with_an_empty_one(reviews: Path) -> None:
    decoder = df.load(str(Path(__file__).parents[2] / "examples/decoder/decoder.onnx"))
    data = df.Dataset(
        reviews / "reviews.csv", text="review", tokenizer=reviews, language_model="next", max_length=16, buckets=1
    )
    with df.Trainer(decoder, output="logits", optimizer=df.optim.AdamW(lr=0.01)) as trainer:
        history = trainer.fit(data, epochs=3, batch_size=20, progress=False)
    assert history["loss"][-1] < history["loss"][0] - 1
    (batch,) = data.take(2).bound(Request(decoder.inputs, ("labels",))).batches(2)
    assert batch.arrays["past_key_values.1.value"].shape == (2, 4, 0, 12)


def test_texts_resume_within_an_epoch_to_the_same_bits(reviews: Path, tmp_path: Path) -> None:
    def run(**options: Any) -> np.ndarray:
        model = text_classifier()
        with df.Trainer(model, devices=["numpy"], seed=2) as trainer:
            data = df.Dataset(reviews / "reviews.csv", tokenizer=reviews, balance="labels", **OPTIONS)
            trainer.fit(data, batch_size=6, epochs=2, progress=False, **options)
        return np.array(model.parameters["table"].array)

    straight = run()
    run(checkpoint=tmp_path / "c", every=3, callbacks=[lambda e: e.stop() if e.step == 9 else None])
    np.testing.assert_array_equal(run(checkpoint=tmp_path / "c", resume="auto"), straight)


def test_labels_and_predictions_are_in_the_order_of_the_file(reviews: Path) -> None:
    dataset = df.Dataset(reviews / "reviews.csv", tokenizer=reviews, **OPTIONS)
    labels = dataset.bound(Request({}, ("labels",), raw=True)).column("labels")
    assert labels is not None
    assert labels.tolist() == [int("w1" in text.split()) for text in texts()]
    with df.Trainer(text_classifier(), devices=["numpy"]) as trainer:
        found = trainer.predict(dataset, batch_size=7, progress=False)["logits"]
        one = trainer.predict(dataset.take(9), batch_size=1, progress=False)["logits"]
    np.testing.assert_allclose(one, found[:9], rtol=1e-5)


def test_a_tokenizer_that_can_not_encode_is_refused(reviews: Path) -> None:
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel({"w1": 0}, unk_token="[UNK]"))
    with pytest.raises(df.InputError, match=r"it can't encode a text: .*\[UNK\]"):
        df.Dataset(reviews / "reviews.csv", tokenizer=made, **OPTIONS).bound(wanted("input_ids"))


def test_what_is_missing_says_where(reviews: Path) -> None:
    path = reviews / "bad.csv"
    path.write_text("review,stars\nw1,good\n,bad\nw2,\nw3 w4,bad\n")
    with pytest.raises(df.InputError, match=r"bad\.csv: line 4, column 'stars': the label is missing"):
        df.Dataset(path, tokenizer=reviews, **OPTIONS).bound(wanted("input_ids"))
    with pytest.raises(df.InputError, match=r"bad\.csv: line 3, column 'review': the text is missing"):
        df.Dataset(path, tokenizer=reviews, text="review", language_model="next").bound(wanted("input_ids"))
    dropped = df.Dataset(path, tokenizer=reviews, missing="drop", **OPTIONS).bound(wanted("input_ids"))
    (batch,) = dropped.batches(9)
    assert batch.arrays["labels"].tolist() == [1, 0]
    assert batch.indices.tolist() == [0, 3]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"tokenizer": None}, "text= needs tokenizer="),
        ({"tokenizer": "nowhere.json"}, "nowhere.json: there is no such file"),
        ({"tokenizer": __file__}, "can't be read as a tokenizer.json"),
        ({"tokenizer": 3}, "tokenizer is a int; expected the path"),
        ({"text": "body"}, "there is no column 'body'; there are 'review', 'stars'"),
        ({"text": ["a", "b", "c"]}, "text has 3 columns"),
        ({"max_length": 0}, "max_length"),
        ({"max_length": 99}, "max_length=99, and the model's inputs have the length 16"),
        ({"buckets": 99}, "buckets: 99 lengths"),
        ({"language_model": "last"}, "language_model is 'last'"),
        ({"join": True}, "join=True needs language_model="),
        ({"columns": ["a"]}, "columns= is no option of CSV files|tokenizer= is no option"),
        ({"rename": {"input_ids": "tokens"}}, "no input 'input_ids' of two axes for tokens, but input_ids: int64"),
    ],
)
def test_options_that_do_not_fit(reviews: Path, options: dict[str, Any], says: str) -> None:
    given = {"tokenizer": reviews, **OPTIONS, **options}
    with pytest.raises(df.InputError, match=says):
        df.Dataset(reviews / "reviews.csv", **given).bound(wanted("input_ids", length=16))
