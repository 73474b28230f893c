// Light or dark: as the system has it until the switch is used.
"use strict";
const theme = {
  button: document.getElementById("theme"),
  get isDark() { return document.documentElement.dataset.theme === "dark"; },
  set(name) {
    document.documentElement.dataset.theme = name;
    theme.button.textContent = name === "dark" ? "light" : "dark";
    theme.button.setAttribute("aria-label", `switch to ${theme.button.textContent} colours`);
    document.dispatchEvent(new Event("theme"));
  },
};
theme.set(matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");
theme.button.addEventListener("click", () => theme.set(theme.isDark ? "light" : "dark"));

// What more than one script makes.
const page = {
  button(text, label, action) {
    const made = document.createElement("button");
    made.type = "button";
    made.textContent = text;
    if (label) made.setAttribute("aria-label", label);
    made.addEventListener("click", () => action(made));
    return made;
  },
  tools(figure) {
    const made = document.createElement("div");
    made.className = "tools";
    const caption = figure.querySelector("figcaption");
    if (caption) caption.after(made); else figure.prepend(made);
    return made;
  },
  given: (figure) => JSON.parse(figure.querySelector('script[type="application/json"]').textContent),
  save(url, name) {
    const link = document.createElement("a");
    link.href = url;
    link.download = name.replace(/[^\w.-]+/g, "-");
    link.click();
  },
};
