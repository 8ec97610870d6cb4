// HTML from templates: every value is escaped, unless it is HTML that a template made.

export class Html {
  readonly text: string;
  constructor(text: string) {
    this.text = text;
  }
}

type Value = string | number | Html | undefined | false | readonly Value[];

/** Attributes must be quoted: `<input value="${value}">`. */
export function html(parts: TemplateStringsArray, ...values: readonly Value[]): Html {
  return new Html(parts.map((part, n) => part + (n < values.length ? render(values[n]) : '')).join(''));
}

function render(value: Value): string {
  if (value === undefined || value === false) return '';
  if (value instanceof Html) return value.text;
  if (typeof value === 'object') return value.map(render).join('');
  return String(value).replace(/[&"'<>]/g, (character) => `&#${character.charCodeAt(0)};`);
}
