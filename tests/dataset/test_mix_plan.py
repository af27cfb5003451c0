"""The mixture plan: shares that can be had are kept, caps never passed, what cannot be had is refused with numbers."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headwater.core.errors import RecipeError
from headwater.dataset import check_epochs
from headwater.dataset.mix_config import MixingConfig
from headwater.dataset.mix_plan import Stretch, fit_languages, language_shares, plan_mixture
from headwater.dataset.order import Order, OrderSegment

SIZES = {"web": {"en": 600_000, "zh": 400_000}, "books": {"en": 50_000, "zh": 50_000}, "code": {"python": 200_000}}


def test_shares_that_can_be_had_stay_as_they_were_written() -> None:
    weights = {"web": 0.6, "books": 0.1, "code": 0.3}
    (plan,) = plan_mixture(SIZES, [Stretch(500_000, 128, weights)], MixingConfig(), max_epochs=4)
    assert plan.weights == weights
    assert plan.rows["books"][0] == pytest.approx(50_000)
    (plan,) = plan_mixture(SIZES, [Stretch(500_000, 128, None)], MixingConfig(), max_epochs=4)
    assert plan.weights is None


def test_shares_that_cannot_be_had_are_refused_with_the_numbers() -> None:
    with pytest.raises(RecipeError) as caught:
        plan_mixture(SIZES, [Stretch(1_000_000, 1, {"web": 1, "books": 1})], MixingConfig(max_repeats={"books": 2}))
    assert caught.value.what == (
        "domain 'books' would give 500,000 tokens, but has 100,000 and may be read 2 times: 200,000 at most"
    )


def test_what_is_missing_goes_to_others_by_priority_up_to_their_caps() -> None:
    config = MixingConfig(shortfall="fill", priority=("code",), max_repeats={"books": 2, "code": 1, "web": 1})
    (plan,) = plan_mixture(SIZES, [Stretch(900_000, 1, {"web": 1, "books": 1, "code": 0.25})], config)
    assert {name: round(read) for name, (read, _) in plan.rows.items()} == {
        "books": 200_000, "code": 200_000, "web": 500_000,
    }  # fmt: skip
    assert plan.moved == 200_000
    assert "200,000 tokens that capped domains lack come from others" in plan.lines()
    with pytest.raises(RecipeError, match="all domains together may give 1,400,000"):
        plan_mixture(SIZES, [Stretch(2_000_000, 1, {"web": 1, "books": 1, "code": 1})], config)


def test_caps_hold_over_all_phases() -> None:
    config = MixingConfig(max_repeats={"books": 3}, shortfall="fill")
    stretch = Stretch(400_000, 1, {"web": 1, "books": 1})
    plans = plan_mixture(SIZES, [stretch, stretch, stretch], config)
    assert [round(plan.rows["books"][0]) for plan in plans] == [200_000, 100_000, 0]
    assert plans[-1].rows["books"][1] == pytest.approx(3.0)
    with pytest.raises(RecipeError, match=r"2\.00 of them in earlier phases: 100,000 at most"):
        plan_mixture(SIZES, [stretch, stretch], MixingConfig(max_repeats={"books": 3}))


def test_language_shares_are_reached_where_domains_can_give_them() -> None:
    sizes = {"web-en": {"en": 900_000}, "web-zh": {"zh": 100_000}}
    (plan,) = plan_mixture(sizes, [Stretch(100_000, 1, None)], MixingConfig(languages={"zh": 1, "en": 1}))
    assert plan.languages == pytest.approx({"zh": 0.5, "en": 0.5}, abs=1e-3)
    (plan,) = plan_mixture(sizes, [Stretch(100_000, 1, None)], MixingConfig(language_temperature=2.0))
    assert plan.languages["zh"] == pytest.approx(0.25, abs=1e-3)
    assert "languages: en 75.0% of 75.0% wanted, zh 25.0% of 25.0% wanted" in plan.lines()
    (plan,) = plan_mixture(SIZES, [Stretch(100_000, 1, None)], MixingConfig(languages={"zh": 1}))
    assert plan.languages["zh"] == pytest.approx(0.5, abs=0.01), "no domain has more Chinese than that"


def test_names_that_are_not_there_are_refused() -> None:
    for config in (MixingConfig(max_repeats={"x": 1}), MixingConfig(languages={"fr": 1})):
        with pytest.raises(RecipeError, match="there is no"):
            plan_mixture(SIZES, [Stretch(1, 1, None)], config)
    with pytest.raises(RecipeError, match="'x', but there is no such domain"):
        plan_mixture(SIZES, [Stretch(1, 1, {"x": 1})], MixingConfig())


DOMAINS = st.dictionaries(st.sampled_from("abcd"), st.integers(2_000, 50_000), min_size=2)


@settings(max_examples=60)
@given(DOMAINS, st.integers(5_000, 200_000), st.lists(st.floats(0.05, 1), min_size=4, max_size=4), st.floats(0.5, 4))
def test_a_filled_plan_never_passes_a_cap_in_the_real_order(
    tokens: dict[str, int], wanted: int, weights: list[float], cap: float
) -> None:
    sizes = {name: {"en": count} for name, count in tokens.items()}
    given_weights = dict(zip(sorted(tokens), weights, strict=False))
    config = MixingConfig(shortfall="fill", max_repeats=dict.fromkeys(tokens, cap))
    samples = wanted // 100
    room = sum(cap * ((count - 1) // 100) * 100 - 100 for count in tokens.values())
    if room < samples * 100:
        with pytest.raises(RecipeError, match="all domains together"):
            plan_mixture(sizes, [Stretch(samples * 100, 100, given_weights)], config)
        return
    (plan,) = plan_mixture(sizes, [Stretch(samples * 100, 100, given_weights)], config)
    assert plan.weights is not None
    order = Order(tokens, seed=0, segments=[OrderSegment(0, 100, plan.weights)])
    check_epochs(order.use(samples), cap + 1e-9)


@given(DOMAINS)
def test_fitting_languages_that_agree_changes_nothing(tokens: dict[str, int]) -> None:
    sizes = {name: {"en": count, "zh": count} for name, count in tokens.items()}
    weights = dict.fromkeys(tokens, 1 / len(tokens))
    fitted = fit_languages(sizes, weights, {"en": 0.5, "zh": 0.5})
    assert fitted == pytest.approx(weights)
    assert language_shares(sizes, fitted) == pytest.approx({"en": 0.5, "zh": 0.5})
