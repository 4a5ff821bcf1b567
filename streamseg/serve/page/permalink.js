// The settings of the page in the fragment of its address, which browsers do not send to servers.

// Returns the fragment of settings: { name: value or list of values }; empty ones are left out.
export function toFragment(settings) {
  const entries = new URLSearchParams();
  for (const [name, value] of Object.entries(settings)) {
    for (const part of [value].flat()) if (part !== "" && part !== false && part != null) entries.append(name, part);
  }
  return entries.toString();
}

// Applies a fragment with a function for each name, which returns whether it knows a value; returns what is unknown.
export function applyFragment(fragment, setters) {
  const entries = new URLSearchParams(fragment.replace(/^#/, ""));
  const unknown = [];
  for (const [name, value] of entries) {
    const setter = Object.hasOwn(setters, name) ? setters[name] : null;
    if (!setter?.(value)) unknown.push(`${name}=${value}`.slice(0, 60));
  }
  return unknown;
}
