"""Parts of pictures."""

from matplotlib.figure import Figure

from anymax.display import legend_below


def test_a_legend_of_long_names_stays_inside_the_picture():
    canvas = Figure(figsize=(12, 5), layout="constrained")
    axes = canvas.subplots()
    for number in range(5):
        axes.plot([1, 2], label=f"a_corpus.a_recipe_with_a_long_name_{number}")
    legend_below(canvas, axes, columns=5)
    canvas.draw_without_rendering()
    shown = canvas.legends[0].get_window_extent()
    assert shown.x0 >= 0 and shown.x1 <= canvas.bbox.width and shown.y0 >= 0
