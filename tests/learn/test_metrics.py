"""A step's metrics against its updates' by hand."""

from agentjax.learn.metrics import merge_metrics


def test_each_kind_of_metric_is_merged_its_own_way():
    first = {"learn/tokens": 10, "policy/loss": 1.0, "policy/ratio_max": 3.0, "optim/skipped": 1, "optim/lr": 0.1}
    second = {"learn/tokens": 30, "policy/loss": 2.0, "policy/ratio_max": 2.0, "optim/skipped": 0, "optim/lr": 0.2}
    assert merge_metrics([first, second]) == {
        "learn/tokens": 40,
        "policy/loss": 1.75,
        "policy/ratio_max": 3.0,
        "optim/skipped": 0.0,
        "optim/lr": 0.2,
    }


def test_updates_without_a_trained_token_merge_to_zero():
    assert merge_metrics([{"learn/tokens": 0, "policy/loss": 0.0}]) == {"learn/tokens": 0.0, "policy/loss": 0.0}
