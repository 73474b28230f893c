// Tables: sorted by a column, and copied as CSV or Markdown.
"use strict";
(() => {
  const text = (cell) => cell.textContent.trim();
  const number = (cell) => parseFloat(text(cell).replace(/[,\s]/g, ""));

  // Rows below the same heading stay below it.
  function sections(body) {
    const found = [{ heading: null, rows: [] }];
    for (const row of body.rows) {
      if (row.querySelector("th[colspan]")) found.push({ heading: row, rows: [] });
      else found[found.length - 1].rows.push(row);
    }
    return found;
  }

  function sort(table, column, direction) {
    const body = table.tBodies[0], order = direction === "ascending" ? 1 : -1;
    const compare = (one, other) => {
      const [a, b] = [one.cells[column], other.cells[column]], [x, y] = [number(a), number(b)];
      // Cells without a number come last, whatever the direction.
      if (Number.isNaN(x) !== Number.isNaN(y)) return Number.isNaN(x) ? 1 : -1;
      return order * (Number.isNaN(x) ? text(a).localeCompare(text(b)) : x - y);
    };
    for (const { heading, rows } of sections(body)) {
      if (heading) body.append(heading);
      body.append(...rows.sort(compare));
    }
  }

  function lines(table) {
    const body = [...table.tBodies[0].rows].map((row) => [...row.cells].map(text));
    return [[...table.tHead.rows[0].cells].map(text), ...body];
  }

  const quoted = (cell) => (/[",\n]/.test(cell) ? `"${cell.replaceAll('"', '""')}"` : cell);
  const asCsv = (table) => lines(table).map((row) => row.map(quoted).join(",")).join("\n") + "\n";

  function asMarkdown(table) {
    const [head, ...body] = lines(table).map((row) => row.map((cell) => cell.replaceAll("|", "\\|")));
    const rule = [...table.tHead.rows[0].cells].map((cell) => (cell.classList.contains("left") ? "---" : "---:"));
    return [head, rule, ...body].map((row) => `| ${row.join(" | ")} |`).join("\n") + "\n";
  }

  async function copy(button, content) {
    const before = button.textContent;
    try {
      await navigator.clipboard.writeText(content);
    } catch {
      const area = document.body.appendChild(document.createElement("textarea"));
      area.value = content;
      area.select();
      document.execCommand("copy");
      area.remove();
    }
    button.textContent = "copied";
    setTimeout(() => { button.textContent = before; }, 1200);
  }

  document.querySelectorAll("figure.table").forEach((figure) => {
    const table = figure.querySelector("table");
    [...table.tHead.rows[0].cells].forEach((head, column) => {
      if (!text(head)) return;
      head.replaceChildren(page.button(text(head), "", () => {
        const direction = head.getAttribute("aria-sort") === "ascending" ? "descending" : "ascending";
        for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
        head.setAttribute("aria-sort", direction);
        sort(table, column, direction);
      }));
    });
    const tools = page.tools(figure);
    tools.append(
      page.button("CSV", "copy as CSV", (button) => copy(button, asCsv(table))),
      page.button("Markdown", "copy as Markdown", (button) => copy(button, asMarkdown(table))),
    );
    figure.append(tools);
  });
})();
