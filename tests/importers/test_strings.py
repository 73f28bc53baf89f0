"""Operators on strings against ONNX Runtime, the patterns of RE2, and strings in the memory of a run."""

import gc
import re

import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto, helper

import dataflow as df
from dataflow import ops
from dataflow.host.strings import known_strings
from dataflow_onnx.loading import load_bytes
from dataflow_onnx.re2 import python_pattern
from tests.support import onnx_model

node = helper.make_node
TEXT, FLOAT, INT = TensorProto.STRING, TensorProto.FLOAT, TensorProto.INT64


def texts(*values):
    return np.array(values, object)


def both(nodes, feeds, outputs, shapes=None, opset=20):
    """The results of dataflow and of ONNX Runtime."""
    kinds = {"O": TEXT, "f": FLOAT, "i": INT}
    inputs = [(n, kinds[a.dtype.kind], (shapes or {}).get(n, a.shape)) for n, a in feeds.items()]
    data = onnx_model(nodes, inputs, [(n, k, None) for n, k in outputs], opset=opset, ir_version=9).SerializeToString()
    expected = onnxruntime.InferenceSession(data, providers=["CPUExecutionProvider"]).run(None, feeds)
    found = df.Session(load_bytes(data)).run(feeds)
    return [found[name] for name, _ in outputs], expected


def same(nodes, feeds, outputs, shapes=None, opset=20):
    for a, b in zip(*both(nodes, feeds, outputs, shapes, opset), strict=True):
        assert a.shape == b.shape and a.dtype == b.dtype
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("case_sensitive", [0, 1])
@pytest.mark.parametrize("action", ["NONE", "LOWER", "UPPER"])
@pytest.mark.parametrize("words", [("Hello", "the", "The", "", "Él é", "X"), ("the", "THE")])
def test_string_normalizer(words, action, case_sensitive):
    feeds = {"x": np.array([words], object)}
    of = {
        "case_change_action": action,
        "is_case_sensitive": case_sensitive,
        "stopwords": ["The", "x", "ÉL É"],
        "locale": "C",
    }
    same([node("StringNormalizer", ["x"], ["y"], **of)], feeds, [("y", TEXT)], {"x": (1, "n")})


@pytest.mark.parametrize("limit", [{}, {"maxsplit": 0}, {"maxsplit": 1}, {"maxsplit": 7}])
@pytest.mark.parametrize("delimiter", [{}, {"delimiter": ","}, {"delimiter": "ab"}])
def test_string_split(delimiter, limit):
    feeds = {"x": texts("a,b,,c", " x  y z ", "abab", "é,").reshape(2, 2)}
    outputs = [("y", TEXT), ("n", INT)]
    same([node("StringSplit", ["x"], ["y", "n"], **delimiter, **limit)], feeds, outputs, {"x": (2, "n")})


TOKENS = [
    {"separators": [""]},
    {"separators": [" "]},
    {"separators": [" ", ","], "mincharnum": 2},
    {"separators": ["b|bc", "d*"]},
    {"tokenexp": "."},
    {"tokenexp": "[a-zé]+"},
    {"tokenexp": "a|ab|c+?", "mincharnum": 2},
    {"tokenexp": "x"},
    {"tokenexp": r"\b\w+\b"},
    {"tokenexp": r"(?i)\bB\w*\b"},
    {"tokenexp": r"[^ ]+\b", "mincharnum": 2},
    {"tokenexp": r"\w\B"},
    {"tokenexp": r"\w+$"},
    {"separators": [r"\b +", r",$"]},
]


@pytest.mark.parametrize("mark", [0, 1])
@pytest.mark.parametrize("how", TOKENS, ids=str)
def test_tokenizer(how, mark):
    """Matches are the longest from the leftmost beginning, as RE2 has them where it is asked to."""
    attributes = {"mark": mark, "pad_value": "#", "mincharnum": 1, **how}
    tokenizer = node("Tokenizer", ["x"], ["y"], domain="com.microsoft", **attributes)
    feeds = {"x": texts("ab abc, dcd", "é, a", "", "bcccb")}
    outputs = [("y", TEXT)]
    same([tokenizer], feeds, outputs, {"x": ("n",)})
    same([tokenizer], {"x": feeds["x"].reshape(2, 2)}, outputs, {"x": ("n", 2)})


@pytest.mark.parametrize(
    "how", [{"tokenexp": "a$|b"}, {"tokenexp": r"\b\w+?\b"}, {"separators": [r"\b ", "a|ab"]}], ids=str
)
def test_patterns_of_tokens_that_look_ahead_are_refused(how):
    attributes = {"mark": 0, "pad_value": "#", "mincharnum": 1, **how}
    tokenizer = node("Tokenizer", ["x"], ["y"], domain="com.microsoft", **attributes)
    proto = onnx_model([tokenizer], [("x", TEXT, [2])], [("y", TEXT, None)])
    with pytest.raises(df.ModelError, match="looks at what is behind"):
        load_bytes(proto.SerializeToString())


def test_strings_move_and_compare_as_numbers_do():
    x = texts("a", "b", "c", "b", "", "é").reshape(2, 3)
    nodes = [
        node("StringConcat", ["x", "s"], ["c"]), node("Transpose", ["c"], ["t"]), node("Equal", ["x", "s"], ["e"]),
        node("Where", ["e", "x", "c"], ["w"]), node("Gather", ["w", "i"], ["g"], axis=1),
        node("Concat", ["g", "w"], ["k"], axis=1), node("Identity", ["k"], ["y"]),
    ]  # fmt: skip
    feeds = {"x": x, "s": texts("b"), "i": np.array([2, 0])}
    outputs = [("y", TEXT), ("t", TEXT), ("e", TensorProto.BOOL)]
    same(nodes, feeds, outputs, {"x": ("n", 3)})


def test_casts():
    numbers = np.array([1.0, -0.0, 0.1, 1e-5, 123456789, 1e20, np.nan, np.inf, -np.inf, 1 / 3, 16777216], np.float32)
    same([node("Cast", ["x"], ["y"], to=TEXT)], {"x": numbers}, [("y", TEXT)])
    same([node("Cast", ["x"], ["y"], to=TEXT)], {"x": np.array([3, -5])}, [("y", TEXT)])
    words = texts("1.5", "-2", " 3", "1e3", "NaN", "INF", "-inf", "+inf", ".5")
    same([node("Cast", ["x"], ["y"], to=FLOAT)], {"x": words}, [("y", FLOAT)])
    same([node("Cast", ["x"], ["y"], to=INT)], {"x": texts("1", "-2", "+3")}, [("y", INT)])


@pytest.mark.parametrize("text", ["", "abc", "1_0", "0x10", "1.5.2", "9" * 30, "\u0661", "1" * 5000])
def test_what_is_no_number_is_refused(text):
    data = onnx_model([node("Cast", ["x"], ["y"], to=INT)], [("x", TEXT, (1,))], [("y", INT, None)], opset=20)
    with pytest.raises(df.InputError, match=r"is not an integer|is outside"):
        df.Session(load_bytes(data.SerializeToString())).run({"x": texts(text)})


# ---- n-grams ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("words", [False, True])
@pytest.mark.parametrize("mode", ["TF", "IDF", "TFIDF"])
@pytest.mark.parametrize(("least", "most", "skips"), [(1, 1, 0), (1, 2, 1), (2, 3, 2), (2, 2, 0), (1, 3, 0)])
def test_tfidf(least, most, skips, mode, words):
    random = np.random.default_rng(least * 10 + most + skips)
    pool, starts = [], []
    for length in range(1, 4):
        starts.append(len(pool))
        pool += sum(dict.fromkeys(map(tuple, random.integers(0, 4, (6, length)).tolist())), ())
    count = sum((b - a) // n for n, (a, b) in enumerate(zip(starts, [*starts[1:], len(pool)], strict=True), start=1))
    of = {"pool_strings": [f"w{i}" for i in pool]} if words else {"pool_int64s": pool}
    of |= {"min_gram_length": least, "max_gram_length": most, "max_skip_count": skips, "mode": mode}
    of |= {"ngram_counts": starts, "ngram_indexes": random.permutation(count).tolist()}
    of |= {"weights": random.random(count).astype(np.float32).tolist()}
    x = random.integers(0, 5, (7, 9))
    for given in (x, x[0]):
        feeds = {"x": np.vectorize(lambda i: f"w{i}", otypes=[object])(given) if words else given}
        shape = ("n", "m")[: given.ndim]
        same([node("TfIdfVectorizer", ["x"], ["y"], **of)], feeds, [("y", FLOAT)], {"x": shape})


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"ngram_counts": [0, 9]}, "no ascending starts"), ({"ngram_indexes": [0, -1]}, "can't be counted"),
        ({"ngram_indexes": [0]}, "more n-grams"), ({"min_gram_length": 0}, "can't be counted"),
        ({"weights": [1.0], "mode": "IDF"}, "1 weights for 3"), ({"ngram_counts": [0, 1]}, "3 tokens for n-grams of 2"),
    ],
)  # fmt: skip
def test_tfidf_that_does_not_fit_is_refused(change, text):
    of = {"pool_int64s": [1, 2, 3, 4], "min_gram_length": 1, "max_gram_length": 2, "max_skip_count": 0, "mode": "TF"}
    of |= {"ngram_counts": [0, 2], "ngram_indexes": [0, 1, 2]} | change
    data = onnx_model([node("TfIdfVectorizer", ["x"], ["y"], **of)], [("x", INT, (3,))], [("y", FLOAT, None)])
    with pytest.raises(df.ModelError, match=text):
        load_bytes(data.SerializeToString())


# ---- patterns -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("pattern", "yes", "no"),
    [
        (r"\d+", ["12"], ["1a", "\u0661", ""]),
        (r"\w*", ["ab_1", ""], ["é", "-"]), (r"\s", ["\t", " "], ["\v", "\u00a0"]),
        (r"\S\D\W", ["éa-"], [" a-", "é1-", "éaa"]), (r"a$", ["a"], ["a\n"]), (r"^a\z", ["a"], ["a\n"]),
        (r".", ["é"], ["\n", ""]), (r"(?s).", ["\n"], ["ab"]), (r"(?i)ÉA", ["éa"], ["ea"]), (r"a|bc", ["bc"], ["ac"]),
        (r"[\w.]+@[a-z]{2,3}", ["a.b@cd"], ["a.b@c", "a b@cd"]), (r"[]a]+", ["]a"], ["b"]), (r"[^\d\s]", ["x"], ["1"]),
        (r"(?:ab){2}?(?P<n>c)", ["ababc"], ["abc"]), (r"(?<n>c)", ["c"], ["n"]),
        (r"x{y}", ["x{y}"], ["xy"]), (r"[[]", ["["], ["]"]), (r"a\b-", ["a-"], ["ab"]), (r"\x41\.", ["A."], ["AA"]),
    ],
)  # fmt: skip
def test_patterns(pattern, yes, no):
    compiled = re.compile(python_pattern(pattern))
    assert all(compiled.fullmatch(text) for text in yes)
    assert not any(compiled.fullmatch(text) for text in no)


@pytest.mark.parametrize(
    "pattern",
    [
        "(?=a)", "(?!a)", "(?<=a)b", "(?<!a)b", r"(a)\1", "(?P=n)", "(?>a)", "a*+", "a**", "a++", "a{2}{3}", "a{1001}",
        r"\Z", r"\pL", r"\Q.\E", "[[:alpha:]]", r"[\D]", "(?x)a b", "(?m)^a", "a(?i)b", "(?#c)", "(", "a)", "[a", "*",
        "[a--b]", "[a&&b]", r"\8", "(?U)a", "(?(1)a)", "a\\", "a{,2}",
    ],
)  # fmt: skip
def test_patterns_that_engines_read_differently_are_refused(pattern):
    with pytest.raises(df.ModelError, match="pattern"):
        python_pattern(pattern)


# ---- tokens of several runs ---------------------------------------------------------------------------


def tokens_of(pattern):
    """A count and the tokens, each with texts of its own; the tokens that were counted are kept for those after it."""
    tokens = {"patterns": (pattern,), "separates": False, "least": 1, "longest": False}
    g = df.GraphBuilder()
    a, b = g.input("a", df.string, (3,)), g.input("b", df.string, (3,))
    g.output("counts", ops.string_token_count(a, **tokens))
    g.output("tokens", ops.string_tokens(b, **tokens, count=3, fill="#", last="!"))
    return df.Session(g.build(), devices=["numpy"])


def test_tokens_are_those_of_the_texts_whatever_was_counted():
    s, other = tokens_of("[a-z]+"), tokens_of("[a-z0-9]*")
    for given in (texts("a b", "c1", ""), texts("x", "a b", "a b"), texts("c1", "c1", "1 2")):
        for session, pattern in ((s, "[a-z]+"), (other, "[a-z0-9]+")):
            for counted in (given, texts("a b", "a b", "d e f g")):
                found = session.run({"a": counted, "b": given})
                assert found["counts"].tolist() == [len(re.findall(pattern, text)) for text in counted]
                rows = [[*re.findall(pattern, text), "!"] for text in given]
                assert found["tokens"].tolist() == [row + ["#"] * (3 - len(row)) for row in rows]


def test_more_tokens_than_the_count_are_refused():
    with pytest.raises(df.InputError, match="element 1 has 4 tokens; count is 3"):
        tokens_of("[a-z]+").run({"a": texts("", "", ""), "b": texts("a", "a b c", "")})


@pytest.mark.parametrize("case", ["lower", "upper"])
@pytest.mark.parametrize("ascii_only", [False, True])
def test_case_changes_by_character_where_one_becomes_one(case, ascii_only):
    g = df.GraphBuilder()
    g.output("y", ops.string_case(g.input("x", df.string, ("n",)), case=case, ascii_only=ascii_only))
    s = df.Session(g.build(), devices=["numpy"])
    change = getattr(str, case)

    def changed(c):
        return c if (ascii_only and not c.isascii()) or len(change(c)) != 1 else change(c)

    for given in (texts("aB", "", "C d"), texts("Straße", "ΑΣ", "İI", "ǆ", "aB"), texts("日本", "ﬁ")):
        assert s.run({"x": given})["y"].tolist() == ["".join(map(changed, text)) for text in given]


# ---- memory -------------------------------------------------------------------------------------------


def session():
    g = df.GraphBuilder()
    x = g.input("x", df.string, ("n",))
    stored = g.initializer("stored", texts("s", "t"))
    g.output("y", ops.string_concat(ops.reshape(x, shape=(*x.type.shape, 1)), stored))
    return df.Session(g.build(), devices=["numpy"])


def test_strings_of_a_run_are_forgotten_and_those_of_constants_with_their_session():
    gc.collect()
    before = known_strings()
    s = session()
    for n in (1, 3, 1):
        x = texts(*(f"{n}-{i}" for i in range(n)))
        y = s.run({"x": x})["y"]
        assert y.tolist() == [[f"{text}s", f"{text}t"] for text in x]
        kept = known_strings()
        assert kept > before
    assert s.run({"x": np.array(["ü"])})["y"].tolist() == [["üs", "üt"]]
    assert known_strings() == kept
    del s
    gc.collect()
    assert known_strings() == before


def test_a_run_that_fails_forgets_its_strings():
    s = session()
    s.run({"x": texts("a")})
    before = known_strings()
    with pytest.raises(df.InputError, match=r"input 'x': element 1 of an array of strings is 2\.0"):
        s.run({"x": texts("a", 2.0)})
    assert known_strings() == before


def test_strings_on_the_host_are_no_work_elsewhere(caplog):
    """No device has kernels of them, so that nobody could name a better one; other work is still named."""
    nodes = [node("StringConcat", ["x", "x"], ["y"])]
    model = load_bytes(onnx_model(nodes, [("x", TEXT, [2])], [("y", TEXT, [2])], opset=20).SerializeToString())
    session = df.Session(model, devices=["cpu"], fallback="error")
    assert session.run(texts("a", "b"))["y"].tolist() == ["aa", "bb"]
    assert not caplog.records
    assert [one.device for one in session.placement()] == ["numpy"]
    numbers = [node("StringConcat", ["x", "x"], ["y"]), node("Det", ["m"], ["d"])]
    inputs = [("x", TEXT, [2]), ("m", FLOAT, [3, 3])]
    model = load_bytes(onnx_model(numbers, inputs, [("y", TEXT, [2]), ("d", FLOAT, [])], opset=20).SerializeToString())
    pinned = {"d": "numpy"}
    with pytest.raises(df.ModelError, match="most of it in det 'det': it is pinned there"):
        df.Session(model, devices=["cpu"], fallback="error", pin=pinned).run(
            {"x": texts("a", "b"), "m": np.eye(3, dtype=np.float32)}
        )


@pytest.mark.parametrize("device", ["cpu", "numpy"])
def test_strings_without_axes(device):
    """NumPy's functions give a str for them, not an array."""
    nodes = [
        node("Gather", ["words", "index"], ["word"]),
        node("StringConcat", ["word", "end"], ["joined"]),
        node("CategoryMapper", ["number"], ["name"], domain="ai.onnx.ml", cats_strings=["a"], cats_int64s=[3]),
    ]
    inputs = [("words", TEXT, [2]), ("index", INT, []), ("end", TEXT, []), ("number", INT, [])]
    outputs = [(name, TEXT, []) for name in ("word", "joined", "name")]
    data = onnx_model(nodes, inputs, outputs, domains=["ai.onnx.ml"], opset=20).SerializeToString()
    feeds = {"words": texts("x", "yy"), "index": np.array(1), "end": np.array("!", object), "number": np.array(3)}
    found = df.Session(load_bytes(data), devices=[device]).run(feeds)
    expected = onnxruntime.InferenceSession(data, providers=["CPUExecutionProvider"]).run(None, feeds)
    assert [y.item() for y in expected] == ["yy", "yy!", "a"]
    for (name, *_), y in zip(outputs, expected, strict=True):
        assert found[name].shape == () and found[name].item() == y.item()
