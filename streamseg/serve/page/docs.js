// openapi.json as people read it.

const make = (tag, text, ...children) => {
  const element = document.createElement(tag);
  if (text) element.textContent = text;
  element.append(...children);
  return element;
};

const row = (...cells) => make("tr", "", ...cells.map((cell) => make("td", cell)));

function example(method, path, operation) {
  const line = [`curl ${location.origin}${path}`];
  if (operation.requestBody) line.push("--data-binary @picture.jpg", "-H 'Accept: image/png'", "-o labels.png");
  return make("pre", line.join(" "));
}

const about = await (await fetch("openapi.json")).json();
const sections = [make("section", "", make("p", about.info.description))];
for (const [path, methods] of Object.entries(about.paths)) {
  for (const [method, operation] of Object.entries(methods)) {
    const parameters = (operation.parameters ?? []).map(({ name, schema }) => row(name, describe(schema)));
    const answers = Object.entries(operation.responses).map(([status, { description }]) => row(status, description));
    sections.push(
      make(
        "section",
        "",
        make("h2", "", make("b", method.toUpperCase()), make("span", path)),
        make("p", operation.description),
        example(method, path, operation),
        make("table", "", ...parameters, ...answers),
      ),
    );
  }
}
document.getElementById("paths").replaceChildren(...sections);

function describe({ type, minimum, maximum, default: usual }) {
  const range = minimum === undefined ? "" : `, ${minimum} to ${maximum}`;
  return `${type}${range}${usual === undefined ? "" : `; ${JSON.stringify(usual)} unless given`}`;
}
