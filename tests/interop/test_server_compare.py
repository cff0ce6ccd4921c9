"""The comparison of servers sees what it should."""
import pytest
from server_client import shape_of, stream_shape
from server_compare import assert_same_values, differences, metric_families, not_allowed

THEIRS = {"id": "x", "choices": [{"text": "a", "logprobs": None}], "usage": {"tokens": 3}}


@pytest.mark.parametrize("ours, wanted", [
    (THEIRS, []),
    ({**THEIRS, "id": 3}, [".id: int instead of str"]),
    ({**THEIRS, "version": 1}, [".version: extra"]),
    ({"choices": THEIRS["choices"], "usage": THEIRS["usage"]}, [".id: missing"]),
    ({**THEIRS, "choices": []}, [".choices[]: no element"]),
    ({**THEIRS, "choices": [{"text": None, "logprobs": None}]}, [".choices[].text: null instead of str"]),
    ({**THEIRS, "choices": [*THEIRS["choices"], {"text": "b"}]}, [".choices[].logprobs: missing"]),
    ({**THEIRS, "usage": {"tokens": 3.5}}, [".usage.tokens: float instead of int"]),
    ({**THEIRS, "usage": None}, [".usage: null instead of object"]),
])
def test_differences(ours, wanted):
    assert differences(shape_of(THEIRS), shape_of(ours)) == wanted


def test_keys_that_are_data():
    one, other = ({"top_logprobs": [{token: -0.5}, None]} for token in "ab")
    assert differences(shape_of(one), shape_of(other)) == []
    assert differences(shape_of(one), shape_of({"top_logprobs": [{"a": "-0.5"}, None]})) == [".top_logprobs[]{}: str instead of float"]


def test_streams():
    def event(index, **more):
        return {"choices": [{"index": index, **more}]}

    one = {"stream": stream_shape([event(0), event(0), event(0, finish="x"), "[DONE]"])}
    assert differences(one, {"stream": stream_shape([event(0), event(0, finish="x"), "[DONE]"])}) == []
    assert differences(one, {"stream": stream_shape([event(0), "[DONE]"])}) == ["event.choices[].finish: missing"]
    assert differences(one, {"stream": stream_shape([event(0), event(0, finish="x")])}) == ["event: no element"]


def test_allowed():
    found = [".choices[].text: missing", ".version: extra"]
    assert not_allowed(found, "case", [("case", r"\.version: extra", "ours")]) == found[:1]
    assert not_allowed(found, "other", [("case", r"\.version: extra", "ours")]) == found


def value(tokens, logprobs, second=-5.0, **more):
    return {"text": "".join(tokens), "token_ids": [], "tokens": tokens, "logprobs": logprobs,
            "top": [[logprob, second] for logprob in logprobs], "finish_reason": "length", "stop_reason": None, "prompt": [], **more}


def test_greedy_values():
    theirs = [value(["a", "b"], [-1.0, -2.0])]
    assert_same_values(theirs, [value(["a", "b"], [-1.001, -2.001])])
    for wrong in (value(["a", "c"], [-1.0, -2.0]), value(["a", "b"], [-1.0, -2.01]), value(["a"], [-1.0]),
                  value(["a", "b"], [-1.0, -2.0], text="ac"), value(["a", "b"], [-1.0, -2.0], second=-4.0)):
        with pytest.raises(AssertionError):
            assert_same_values(theirs, [wrong])


def test_ties_may_part():
    assert_same_values([value(["a", "b"], [-1.0, -2.0], second=-2.0005)], [value(["a", "c", "d"], [-1.0, -2.0, -1.0], second=-2.0005)])


def test_metrics():
    text = ('# HELP vllm:x some\n# TYPE vllm:x gauge\nvllm:x{engine="0",model_name="m"} 1.0\n# TYPE vllm:t histogram\n'
            'vllm:t_bucket{le="0.1",model_name="m"} 1\nvllm:t_sum{model_name="m"} 1\npython_gc 3\n')
    assert metric_families(text) == {"vllm:x": ["gauge", ["engine", "model_name"]], "vllm:t": ["histogram", ["model_name"]]}
