// Heads: a map of layers and heads coloured by a measure, and where the chosen one looks in examples.
"use strict";
(() => {
  const SVG = "http://www.w3.org/2000/svg";
  // From the least to the greatest, as viridis: apart in lightness alone, so that no eye for colours is needed.
  const STOPS = [[68, 1, 84], [59, 82, 139], [33, 145, 140], [94, 201, 98], [253, 231, 37]];

  function colour(share) {
    const at = Math.min(Math.max(share, 0), 1) * (STOPS.length - 1), low = Math.min(Math.floor(at), STOPS.length - 2);
    return STOPS[low].map((value, channel) => Math.round(value + (at - low) * (STOPS[low + 1][channel] - value)));
  }
  // Of the square root of a weight: dark is much, as a pale yellow beside white would not be seen.
  const shade = (root) => colour(0.92 * (1 - root));
  const css = (rgb) => `rgb(${rgb.join(",")})`;
  const isLight = ([red, green, blue]) => 0.3 * red + 0.59 * green + 0.11 * blue > 130;

  function make(name, attributes, parent, text) {
    const made = document.createElementNS(SVG, name);
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    if (text !== undefined) made.textContent = text;
    if (parent) parent.append(made);
    return made;
  }

  function element(name, parent, text, kind) {
    const made = document.createElement(name);
    if (text !== undefined) made.textContent = text;
    if (kind) made.className = kind;
    parent.append(made);
    return made;
  }

  const short = (value) => (value === null || value === undefined ? "none" : value.toPrecision(3));
  const cut = (unit) => (unit.length > 16 ? `${unit.slice(0, 15)}…` : unit);

  class View {
    constructor(figure) {
      this.figure = figure;
      this.given = page.given(figure);
      this.place = figure.querySelector(".drawn");
      this.measure = Object.keys(this.given.measures)[0];
      this.chosen = 0;
      this.example = 0;
      this.cells = [];
      this.makeMap();
      this.head = element("section", this.place, undefined, "head");
      this.head.setAttribute("aria-live", "polite");
      this.colour();
      this.choose(0);
      figure.dataset.drawn = "yes";
    }

    makeMap() {
      const tools = page.tools(this.figure), label = element("label", tools, "colour ");
      const select = element("select", label);
      for (const [name, meaning] of Object.entries(this.given.measures)) {
        const option = element("option", select, name);
        option.value = name;
        option.title = meaning;
      }
      select.addEventListener("change", () => { this.measure = select.value; this.colour(); });
      this.legend = element("span", tools);
      this.meaning = element("p", this.place, "", "note");
      const maps = element("div", this.place, undefined, "maps");
      for (const [kind, called] of Object.entries(this.given.kinds)) this.makeMapOf(kind, called, maps);
    }

    makeMapOf(kind, called, maps) {
      const heads = this.given.heads.map((head, place) => ({ ...head, place })).filter((head) => head.kind === kind);
      const part = element("div", maps);
      element("h3", part, called).id = `map-${kind}`;
      const table = element("table", part, undefined, "map");
      table.setAttribute("role", "grid");
      table.setAttribute("aria-labelledby", `map-${kind}`);
      const most = Math.max(...heads.map((head) => head.number)) + 1, top = element("tr", table);
      element("th", top, "layer");
      for (let number = 0; number < most; number++) element("th", top, number);
      for (const layer of [...new Set(heads.map((head) => head.layer))]) {
        const row = element("tr", table), name = element("th", row, layer);
        name.scope = "row";
        for (const head of heads.filter((each) => each.layer === layer)) this.makeCell(head, row);
      }
    }

    makeCell(head, row) {
      const cell = page.button("", "", () => this.choose(head.place));
      cell.classList.add("cell");
      cell.setAttribute("role", "gridcell");
      cell.addEventListener("keydown", (event) => this.move(event, head));
      const place = element("td", row);
      place.setAttribute("role", "none");
      place.append(cell);
      this.cells[head.place] = cell;
    }

    // Arrows lead to the head beside, above or below.
    move(event, head) {
      const by = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] }[event.key];
      if (!by) return;
      event.preventDefault();
      const wanted = (each) => each.kind === head.kind && each.layer === head.layer + by[0] && each.number === head.number + by[1];
      const place = this.given.heads.findIndex(wanted);
      if (place >= 0) { this.choose(place); this.cells[place].focus(); }
    }

    range() {
      const fixed = this.given.ranges[this.measure];
      if (fixed) return fixed;
      const values = this.given.heads.map((head) => head.values[this.measure]).filter((value) => value !== null && value !== undefined);
      return [Math.min(...values), Math.max(...values)];
    }

    colour() {
      const [low, high] = this.range();
      this.given.heads.forEach((head, place) => {
        const value = head.values[this.measure], cell = this.cells[place], has = value !== null && value !== undefined;
        const rgb = has ? colour(high > low ? (value - low) / (high - low) : 0) : null;
        cell.style.background = has ? css(rgb) : "transparent";
        cell.style.color = has ? (isLight(rgb) ? "#000000" : "#ffffff") : "";
        cell.textContent = has ? value.toFixed(2) : "";
        const name = `${this.given.kinds[head.kind]}, layer ${head.layer}, head ${head.number}: ${this.measure} ${short(value)}`;
        cell.title = name;
        cell.setAttribute("aria-label", name);
      });
      this.legend.replaceChildren(`${short(low)} `);
      this.scale(this.legend, STOPS);
      this.legend.append(` ${short(high)}`);
      this.meaning.textContent = `${this.measure}: ${this.given.measures[this.measure]}`;
    }

    choose(place) {
      this.cells.forEach((cell, number) => {
        cell.setAttribute("aria-selected", number === place);
        cell.tabIndex = number === place ? 0 : -1;
      });
      this.chosen = place;
      this.example = 0;
      this.show();
    }

    show() {
      const head = this.given.heads[this.chosen];
      this.head.replaceChildren();
      const role = head.role ? `: ${head.role}` : "";
      element("h3", this.head, `${this.given.kinds[head.kind]}, layer ${head.layer}, head ${head.number}${role}`);
      const values = Object.keys(this.given.measures).filter((name) => typeof head.values[name] === "number")
        .map((name) => `${name}: ${short(head.values[name])}`);
      element("p", this.head, values.join(" · "), "note");
      const sides = element("div", this.head, undefined, "sides");
      if (head.order.length) this.showExample(head, element("div", sides));
      else element("p", sides, "No example has this kind of attention.", "note");
      if (head.path.length > 1) this.showPath(head, element("div", sides));
    }

    // The alpha of this head over training, and those of all others of its kind behind it.
    showPath(head, parent) {
      const [width, height, left, below] = [420, 110, 34, 18], { steps } = this.given;
      const others = this.given.heads.filter((each) => each.kind === head.kind && each.path.length);
      const all = others.flatMap((each) => each.path), low = Math.min(...all), high = Math.max(...all, low + 1e-6);
      const svg = make("svg", { viewBox: `0 0 ${width} ${height}`, width, height, role: "img", "aria-label": "alpha over training" });
      const x = (step) => left + (width - left - 4) * (step - steps[0]) / Math.max(1, steps[steps.length - 1] - steps[0]);
      const y = (alpha) => 4 + (height - below - 8) * (high - alpha) / (high - low);
      const line = (path, attributes) => make("polyline", {
        points: path.map((alpha, place) => `${x(steps[place]).toFixed(1)},${y(alpha).toFixed(1)}`).join(" "),
        fill: "none", ...attributes,
      }, svg);
      for (const each of others) line(each.path, { stroke: "var(--line)", "stroke-width": 1 });
      line(head.path, { stroke: "var(--chosen)", "stroke-width": 2.2 });
      for (const alpha of [low, high]) make("text", { x: 0, y: y(alpha) + 4, "font-size": 11, fill: "var(--dim)" }, svg, alpha.toFixed(2));
      make("text", { x: left, y: height - 4, "font-size": 11, fill: "var(--dim)" }, svg,
        `alpha over ${steps[steps.length - 1].toLocaleString("en")} steps, other heads behind it`);
      parent.append(svg);
    }

    showExample(head, parent) {
      const number = head.order[this.example], example = this.given.examples[number][head.kind];
      const tools = element("div", parent, undefined, "tools"), last = head.order.length - 1;
      const turn = (by) => { this.example = Math.min(Math.max(this.example + by, 0), last); this.show(); this.head.querySelector(by > 0 ? ".next" : ".before").focus(); };
      const before = page.button("‹", "the example before", () => turn(-1)), next = page.button("›", "the next example", () => turn(1));
      before.className = "before";
      next.className = "next";
      before.disabled = this.example === 0;
      next.disabled = this.example === last;
      const name = `example ${this.example + 1} of ${last + 1}, the clearest first`;
      const save = page.button("SVG", "save as SVG", () => {
        const file = new Blob([new XMLSerializer().serializeToString(svg)], { type: "image/svg+xml" });
        page.save(URL.createObjectURL(file), `layer-${head.layer}-head-${head.number}.svg`);
      });
      tools.append(before, next, name, save);
      const place = element("div", parent, undefined, "sentence"), svg = this.heat(head, example);
      place.append(svg);
      const below = element("p", parent, "Rows look at columns. White is exactly zero, and above it ", "note");
      this.scale(below, [0, 0.25, 0.5, 0.75, 1].map((root) => shade(root)));
      below.append(` up to 1, by the square root.${example.note ? ` ${example.note}` : ""}`);
    }

    scale(parent, colours) {
      element("span", parent, undefined, "scale").style.background = `linear-gradient(90deg, ${colours.map(css).join(",")})`;
    }

    heat(head, example) {
      const heads = this.given.heads.filter((each) => each.kind === head.kind), at = heads.indexOf(head);
      const [rows, columns] = [example.queries.length, example.keys.length], bytes = atob(example.weights);
      const side = 18, left = 8 * Math.min(16, Math.max(...example.queries.map((unit) => unit.length))) + 10;
      const above = 8 * Math.min(16, Math.max(...example.keys.map((unit) => unit.length))) + 10;
      const [width, height] = [left + side * columns + 8, above + side * rows + 8];
      const svg = make("svg", { xmlns: SVG, width, height, viewBox: `0 0 ${width} ${height}`, role: "img", "font-size": 12,
        "font-family": "system-ui, sans-serif", "aria-label": `where the head looks: ${rows} by ${columns} weights` });
      make("rect", { width, height, fill: "#ffffff" }, svg);
      example.keys.forEach((unit, place) => make("text", {
        transform: `translate(${left + side * place + side / 2 + 4},${above - 5}) rotate(-90)`, fill: "#1b1f24",
      }, svg, cut(unit)));
      example.queries.forEach((unit, place) => make("text", {
        x: left - 5, y: above + side * place + side / 2 + 4, "text-anchor": "end", fill: "#1b1f24",
      }, svg, cut(unit)));
      for (let row = 0; row < rows; row++) {
        for (let column = 0; column < columns; column++) {
          const root = bytes.charCodeAt((at * rows + row) * columns + column) / 255;
          if (!root) continue;
          const cell = make("rect", { x: left + side * column, y: above + side * row, width: side - 1, height: side - 1,
            fill: css(shade(root)) }, svg);
          make("title", {}, cell, `${example.queries[row]} → ${example.keys[column]}: ${(root * root).toFixed(3)}`);
        }
      }
      make("rect", { x: left - 0.5, y: above - 0.5, width: side * columns, height: side * rows, fill: "none", stroke: "#d5dae0" }, svg);
      return svg;
    }
  }

  document.querySelectorAll("figure.attention").forEach((figure) => new View(figure));
})();
