"""Pages of real runs of every kind, at toy size, in a browser: each draws all that it has and says nothing else."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from anymax.analysis.report.report import Looks, report
from anymax.display import document
from anymax.recipes import find
from anymax.training import train

pytest.importorskip("vl_convert")
pytestmark = pytest.mark.usefixtures("one_thread")

# By recipe, the sections that its page has besides learning and settings.
PAGES = {
    "sotu.adaptive_tied": ["Attention", "Vocabulary", "Text"],
    "ganea.ptb_mixture_plif": ["Vocabulary", "Text"],
    "ptb.sparse": ["Vocabulary", "Text"],
    "latent.signalling.sparse": ["Latents"],
    "latent.ssvae.dense": ["Latents"],
    "multi30k.learned_entmax": ["Attention", "Text"],
    "ape_small.self_tied": ["Attention", "Text"],
    "bert.small_entmax": ["Attention", "Text"],
}
# Bytes that a page of a toy may take.
SMALL = 3_000_000


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory, browser: Any) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    for recipe in PAGES:
        config = replace(find(recipe)().toy(), log_every=1)
        train(config, folder / recipe)
    return folder


@pytest.mark.parametrize("recipe", PAGES)
def test_the_page_of_a_run_draws(recipe: str, runs: Path, browser: Any) -> None:
    page = report([runs / recipe], Looks(limit=4, texts=4), announce=lambda text: None)
    text = document(page)
    assert len(text.encode()) < SMALL
    file = runs / f"{recipe}.html"
    file.write_text(text, encoding="utf-8")
    tab = browser.new_page()
    said: list[str] = []
    tab.on("console", lambda message: said.append(message.text) if message.type == "error" else None)
    tab.on("pageerror", lambda error: said.append(str(error)))
    tab.goto(file.as_uri())
    assert tab.locator("nav a").all_inner_texts() == ["Learning", *PAGES[recipe], "Settings"]
    for figure in tab.locator("figure.chart").all():
        figure.scroll_into_view_if_needed()
    count = tab.locator("figure.chart").count()
    tab.wait_for_function(f"document.querySelectorAll('figure.chart[data-drawn] canvas').length >= {count}")
    assert said == []
    assert not [text for text in tab.locator(".notice").all_inner_texts() if "can be" in text]
    tab.close()
