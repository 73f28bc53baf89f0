"""Settings behind a name: what each text means, and which are refused."""

import pytest

import dataflow as df
from dataflow.host.settings import split_settings


@pytest.mark.parametrize(
    ("text", "name", "settings"),
    [
        ("focal", "focal", {}),
        ("focal:gamma=2,alpha=0.25", "focal", {"gamma": 2, "alpha": 0.25}),
        ("module:object", "module:object", {}),
        ("a.b:c.d:rate=1e-3", "a.b:c.d", {"rate": 1e-3}),
        ("adamw:betas=(0.9, 0.95),amsgrad=true", "adamw", {"betas": (0.9, 0.95), "amsgrad": True}),
        ("x:weights=[1,2,[3]],axis=None,b=False", "x", {"weights": [1, 2, [3]], "axis": None, "b": False}),
        ("distill:teacher=/a/b:c.onnx,alpha=-1", "distill", {"teacher": "/a/b:c.onnx", "alpha": -1}),
        ("x:text='a,b=c',empty=", "x", {"text": "a,b=c", "empty": ""}),
        ("x: a = 1 , b = two", "x", {"a": 1, "b": "two"}),
    ],
)
def test_settings_stand_behind_a_name(text, name, settings):
    assert split_settings(text) == (name, settings)


@pytest.mark.parametrize(
    "text", ["gamma=2", ":gamma=2", "focal:gamma=2,", "focal:gamma=2,3", "focal:a-b=2", "f:a=1,a=2", "f:a=[1", "f:a=1]"]
)
def test_what_is_no_setting_is_refused_with_all_of_the_text(text):
    with pytest.raises(df.InputError, match=r"expected|twice|closed") as error:
        split_settings(text)
    assert repr(text) in str(error.value)
