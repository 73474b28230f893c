// Texts: those that hold what is searched for, in the order that is chosen.
"use strict";
document.querySelectorAll("figure.texts").forEach((figure) => {
  const list = figure.querySelector(".lines"), lines = [...list.children];
  const search = figure.querySelector("input"), order = figure.querySelector("select"), shown = figure.querySelector(".shown");

  function filter() {
    const wanted = search.value.toLowerCase();
    for (const line of lines) line.hidden = !line.textContent.toLowerCase().includes(wanted);
    shown.textContent = `${lines.filter((line) => !line.hidden).length} of ${lines.length}`;
  }

  function sort() {
    const key = (line) => (order.value === "given" || !line.dataset.score ? +line.dataset.number : +line.dataset.score);
    const sign = order.value === "down" ? -1 : 1;
    list.append(...[...lines].sort((one, other) => sign * (key(one) - key(other))));
  }

  search.addEventListener("input", filter);
  order.addEventListener("change", sort);
  filter();
});
