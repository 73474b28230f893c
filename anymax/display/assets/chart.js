// Plots: drawn by Vega when they come near the window, and again when the colours change.
"use strict";
(() => {
  const light = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#1b1f24", "#8a7400"];
  const dark = ["#56b4e9", "#ff9a4d", "#2fc79b", "#e6a3c8", "#f0c04a", "#9ad0f5", "#e8eaed", "#d3c34a"];
  // Of maps: little is near the ground, much is far from it.
  const shade = ["#dbe9f6", "#4a98c9", "#08306b"], shine = ["#22354a", "#56b4e9", "#e8f4ff"];
  // Pixels below which plots stand above each other, and what an axis of names takes of each, or one of numbers of all.
  const NARROW = 760, NAMES = 170, NUMBERS = 60;
  const style = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

  function config(width, columns) {
    const [text, dim, line] = ["--text", "--dim", "--line"].map(style);
    return {
      background: style("--ground"), font: "system-ui, sans-serif",
      range: { category: theme.isDark ? dark : light, heatmap: theme.isDark ? shine : shade },
      axis: { labelColor: text, titleColor: text, gridColor: line, domainColor: dim, tickColor: dim, titleFontWeight: 400,
        labelFontSize: 12, titleFontSize: 12, labelOverlap: true },
      axisX: { labelAngle: 0, tickCount: Math.ceil(width / columns / 90) },
      legend: { orient: "bottom", columns: Math.max(1, Math.floor(width / 180)), labelLimit: 260, labelColor: text,
        titleColor: text, titleFontWeight: 400, labelFontSize: 12, titleFontSize: 12, symbolStrokeWidth: 2 },
      header: { labelColor: text, titleColor: text, labelFontSize: 12 }, title: { color: text }, view: { stroke: null },
      bar: { color: (theme.isDark ? dark : light)[0] }, line: { color: (theme.isDark ? dark : light)[0] },
      text: { color: text }, rule: { color: dim }, errorbar: { color: dim },
    };
  }

  function rows(columns) {
    const names = Object.keys(columns);
    return (columns[names[0]] || []).map((_, place) => Object.fromEntries(names.map((name) => [name, columns[name][place]])));
  }

  // Every channel that shows one column, shows another.
  function moved(spec, before, [title, after]) {
    if (Array.isArray(spec)) return spec.map((each) => moved(each, before, [title, after]));
    if (spec === null || typeof spec !== "object") return spec;
    const made = Object.fromEntries(Object.entries(spec).map(([name, each]) => [name, moved(each, before, [title, after])]));
    return made.field === before ? { ...made, field: after, title } : made;
  }

  // Decades on the vertical axis, in all layers.
  function inDecades(spec) {
    const each = (layer) => {
      const y = layer.encoding && layer.encoding.y;
      return y ? { ...layer, encoding: { ...layer.encoding, y: { ...y, scale: { type: "log" } } } } : layer;
    };
    return spec.layer ? { ...each(spec), layer: spec.layer.map(each) } : each(spec);
  }

  function verticals(spec) {
    return [spec, ...((spec.spec || spec).layer || [])].map((layer) => layer.encoding && layer.encoding.y).filter(Boolean);
  }

  function start(figure) {
    const given = page.given(figure), place = figure.querySelector(".drawn"), values = rows(given.columns);
    const choices = given.xChoices, y = verticals(given.spec)[0];
    let chosen = choices[0], isLog = Boolean(y && y.scale && y.scale.type === "log"), view = null;
    place.style.minHeight = `${given.height}px`;
    place.setAttribute("role", "img");
    place.setAttribute("aria-label", given.title);

    // Plots beside each other share the width; what is one is as wide as the page.
    function sized(spec, columns) {
      const { concat, facet } = spec, height = given.height, all = place.clientWidth;
      if (!concat && !facet) return { width: "container", height, autosize: { type: "fit-x", contains: "padding" }, ...spec };
      const width = Math.floor(concat ? all / columns - NAMES : (all - NUMBERS) / columns - 20);
      if (concat) return { ...spec, columns, autosize: "pad", concat: concat.map((each) => ({ ...each, width })) };
      return { ...spec, columns, spec: { width, height, ...spec.spec } };
    }

    async function draw() {
      let spec = choices.length ? moved(given.spec, choices[0][1], chosen) : given.spec;
      if (isLog) spec = inDecades(spec);
      const columns = place.clientWidth < NARROW ? 1 : spec.columns || 1;
      const whole = { ...sized(spec, columns), data: { values }, description: given.title };
      const options = { mode: "vega-lite", actions: false, renderer: "canvas", config: config(place.clientWidth, columns) };
      const result = await vegaEmbed(place, whole, options);
      view = result.view;
      figure.dataset.drawn = "yes";
    }

    const tools = page.tools(figure), again = () => { if (figure.dataset.drawn) draw(); };
    const buttons = choices.length > 1 ? choices.map((choice) => page.button(choice[0], `by ${choice[0]}`, () => {
      chosen = choice;
      buttons.forEach((button, number) => button.setAttribute("aria-pressed", choices[number] === chosen));
      again();
    })) : [];
    buttons.forEach((button, number) => button.setAttribute("aria-pressed", number === 0));
    const zeroOrLess = y && values.some((row) => typeof row[y.field] !== "number" || row[y.field] <= 0);
    const decades = y && y.type === "quantitative" && !zeroOrLess && given.spec.layer ? [page.button("log", "logarithmic axis", (button) => {
      isLog = !isLog;
      button.setAttribute("aria-pressed", isLog);
      again();
    })] : [];
    decades.forEach((button) => button.setAttribute("aria-pressed", isLog));
    const save = ["png", "svg"].map((kind) => page.button(kind.toUpperCase(), `save as ${kind.toUpperCase()}`, async () => {
      if (view === null) await draw();
      page.save(await view.toImageURL(kind, 2), `${given.title}.${kind}`);
    }));
    tools.append(...buttons, ...decades, ...save);
    document.addEventListener("theme", again);
    new IntersectionObserver((entries, observer) => {
      if (entries.some((entry) => entry.isIntersecting)) { observer.disconnect(); draw(); }
    }, { rootMargin: "300px" }).observe(figure);
  }

  document.querySelectorAll("figure.chart").forEach(start);
})();
