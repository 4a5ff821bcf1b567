// The API reference: openapi.json as a page.

const make = (tag, text, ...children) => {
  const element = document.createElement(tag);
  if (text) element.textContent = text;
  element.append(...children);
  return element;
};

const row = (...cells) => make("tr", "", ...cells.map((cell) => make("td", cell)));

function example(path, operation) {
  const command = [`curl ${location.origin}${path}`];
  if (operation.requestBody) command.push("--data-binary @picture.jpg", "-H 'Accept: image/png'", "-o labels.png");
  return make("pre", command.join(" "));
}

const openapi = await (await fetch("openapi.json")).json();
const sections = [make("section", "", make("p", openapi.info.description))];
for (const [path, methods] of Object.entries(openapi.paths)) {
  for (const [method, operation] of Object.entries(methods)) {
    const parameters = (operation.parameters ?? []).map(({ name, schema }) => row(name, formatSchema(schema)));
    const responses = Object.entries(operation.responses).map(([status, { description }]) => row(status, description));
    sections.push(
      make(
        "section",
        "",
        make("h2", "", make("b", method.toUpperCase()), make("span", path)),
        make("p", operation.description),
        example(path, operation),
        make("table", "", ...parameters, ...responses),
      ),
    );
  }
}
document.getElementById("paths").replaceChildren(...sections);

function formatSchema({ type, minimum, maximum, default: value }) {
  const range = minimum === undefined ? "" : `, ${minimum} to ${maximum}`;
  return `${type}${range}${value === undefined ? "" : `; default ${JSON.stringify(value)}`}`;
}
