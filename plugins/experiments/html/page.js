// One load level at a time; without scripts all of them are shown below each other.
const levels = [...document.querySelectorAll("section.level")];
const nav = document.querySelector("nav");
if (levels.length > 1) {
  const show = (chosen) => {
    levels.forEach((level, at) => level.classList.toggle("hidden", at !== chosen));
    [...nav.children].forEach((button, at) => button.setAttribute("aria-pressed", at === chosen));
  };
  levels.forEach((level, at) => {
    const button = document.createElement("button");
    button.textContent = level.dataset.label;
    button.onclick = () => show(at);
    nav.append(button);
  });
  show(levels.length - 1);
}
