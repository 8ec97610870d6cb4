// The hosted form of one question and its related pages: HTML without scripts, in light and dark, also for phones.
import { createHash } from 'node:crypto';
import type { FormField } from '../../forms/answer-fields.ts';
import type { Entered } from '../../forms/entered-answer.ts';
import { never } from '../../jobs/model/waiting.ts';
import type { Question } from '../../jobs/questions/question.ts';
import type { FieldError } from '../../kernel/fields.ts';

const style = `
:root { color-scheme: light dark; --text: #1c2430; --dim: #566172; --page: #f4f6f9; --card: #fff; --line: #aab4c2; --accent: #1f5fbf; --on: #fff; --danger: #b3261e; }
@media (prefers-color-scheme: dark) {
  :root { --text: #e6ebf2; --dim: #a3b0c2; --page: #12161d; --card: #1b212b; --line: #566172; --accent: #8ab4f8; --on: #12161d; --danger: #ff8a80; }
}
* { box-sizing: border-box; }
body { margin: 0; padding: 1rem; background: var(--page); color: var(--text); font: 1rem/1.5 system-ui, sans-serif; }
main { max-width: 40rem; margin: 1rem auto; padding: 1.25rem; background: var(--card); border: 1px solid var(--line); border-radius: 0.5rem; overflow-wrap: anywhere; }
h1 { margin: 0 0 1rem; font-size: 1.35rem; line-height: 1.3; }
dl { margin: 0 0 1rem; } dt { color: var(--dim); font-size: 0.875rem; } dd { margin: 0 0 0.5rem; }
pre, .context { white-space: pre-wrap; margin: 0 0 1rem; font-size: 0.9375rem; } pre { font-family: ui-monospace, monospace; }
fieldset, .field { border: 0; margin: 0 0 1rem; padding: 0; min-width: 0; }
label, legend { font-weight: 600; padding: 0; } .choice { display: flex; gap: 0.5rem; align-items: center; min-height: 2.75rem; } .choice label { font-weight: 400; }
input:not([type=checkbox]):not([type=radio]), select, textarea { display: block; width: 100%; min-height: 2.75rem; margin-top: 0.25rem; padding: 0.5rem; font: inherit; color: inherit; background: var(--page); border: 1px solid var(--line); border-radius: 0.25rem; }
input[type=checkbox], input[type=radio] { width: 1.25rem; height: 1.25rem; flex: none; }
.hint, footer { color: var(--dim); font-size: 0.875rem; } .hint { display: block; font-weight: 400; }
.error { display: block; color: var(--danger); font-weight: 600; }
.errors { border: 2px solid var(--danger); border-radius: 0.25rem; padding: 0.5rem 0.75rem; margin: 0 0 1rem; }
.actions { display: flex; flex-wrap: wrap; gap: 0.75rem; margin: 1.25rem 0; }
button { flex: 1 1 8rem; min-height: 2.75rem; padding: 0.5rem 1rem; font: inherit; font-weight: 600; color: var(--text); background: transparent; border: 2px solid var(--line); border-radius: 0.25rem; cursor: pointer; }
button.primary { background: var(--accent); border-color: var(--accent); color: var(--on); } button.danger { border-color: var(--danger); color: var(--danger); }
:focus-visible { outline: 3px solid var(--accent); outline-offset: 2px; }
`;

/** Allows only this page's style, and sending the form to its own origin. */
export const formPolicy = [
  "default-src 'none'",
  `style-src 'sha256-${createHash('sha256').update(style).digest('base64')}'`,
  "form-action 'self'",
  "base-uri 'none'",
  "frame-ancestors 'none'",
].join('; ');

interface FormPage {
  question: Question;
  fields: readonly FormField[];
  entered: Entered | undefined;
  /** Errors by name of the field; '' concerns the whole form. */
  errors: readonly FieldError[];
}

export function formPage({ question, fields, entered, errors }: FormPage): string {
  const { title, context, actions, expiresAt } = question;
  const unnamed = errors.filter((error) => !fields.some((field) => errorOf(field, [error]) !== undefined));
  const buttons =
    actions.length === 0
      ? html`<button class="primary">Send the answer</button>`
      : actions.map(
          ({ name, label, style }) =>
            html`<button class="${style ?? ''}" name="action" value="${name}">${label ?? name}</button>`,
        );
  return page(
    title,
    html`<h1>${title}</h1>
${contextOf(context)}
${errors.length > 0 && html`<div class="errors" role="alert"><strong>The answer was not accepted.</strong> ${unnamed.length === 0 ? 'See the marked fields.' : unnamed.map(({ field, message }) => html` ${field} ${message}.`)}</div>`}
<form method="post" accept-charset="utf-8">
${fields.map((field, n) => fieldOf(field, n, entered, errorOf(field, errors)?.message))}
<div class="actions">${buttons}</div>
</form>
<footer>${expiresAt < never && html`Please answer by <time datetime="${expiresAt}">${utc(expiresAt)}</time>. `}The first answer counts.</footer>`,
  );
}

/** A page with a heading and a sentence: the answer was stored, or the link is no longer valid. */
export function messagePage(title: string, text: string): string {
  return page(title, html`<h1>${title}</h1>\n<p>${text}</p>`);
}

function page(title: string, body: Html): string {
  return `<!doctype html>\n${
    html`<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="robots" content="noindex">
<title>${title}</title>
<style>${new Html(style)}</style>
</head>
<body>
<main>
${body}
</main>
</body>
</html>`.text
  }\n`;
}

export function utc(time: string): string {
  return `${time.slice(0, 10)} ${time.slice(11, 16)} UTC`;
}

function contextOf(context: unknown): Html | undefined {
  if (context === null || context === undefined || context === '') return undefined;
  if (typeof context !== 'object') return html`<p class="context">${String(context)}</p>`;
  if (Array.isArray(context)) return html`<pre>${JSON.stringify(context, null, 2)}</pre>`;
  const rows = Object.entries(context).map(([name, value]) => {
    const isPlain = typeof value !== 'object' || value === null;
    return html`<dt>${name}</dt><dd>${isPlain ? String(value) : html`<pre>${JSON.stringify(value, null, 2)}</pre>`}</dd>`;
  });
  return html`<dl>${rows}</dl>`;
}

/** The value for a control that shows no zone. */
function withoutZone(time: string): string {
  const hasZone = /(Z|[+-]\d\d:?\d\d)$/.test(time) && !Number.isNaN(Date.parse(time));
  return hasZone ? new Date(time).toISOString().slice(0, 16) : time;
}

/** The error of the field, or of an entry of its list. */
function errorOf({ name }: FormField, errors: readonly FieldError[]): FieldError | undefined {
  return errors.find(({ field }) => field === name || field.startsWith(`${name}[`));
}

/** How a value is entered, where the control does not show it. */
const forms: Partial<Record<FormField['kind'], string>> = {
  json: 'as JSON',
  lines: 'one per line',
  dateTime: 'in UTC',
};

/** Ids use the number of the field, because its name may have any characters. */
function fieldOf(field: FormField, n: number, entered: Entered | undefined, error: string | undefined): Html {
  const { name, label, hint, kind, required, options } = field;
  const id = `field-${n}`;
  const value = entered === undefined ? field.initial : (entered[name] ?? '');
  const one = typeof value === 'string' ? value : (value.at(-1) ?? '');
  const isChosen = (option: string) => (typeof value === 'string' ? value === option : value.includes(option));
  const described = error !== undefined || hint !== undefined;
  const common = html`id="${id}" name="field.${name}"${described && html` aria-describedby="${id}-note"`}${error !== undefined && html` aria-invalid="true"`}${required && html` required`}`;
  const note =
    described &&
    html`<span id="${id}-note">${hint !== undefined && html`<span class="hint">${hint}</span>`}${error !== undefined && html`<span class="error">${error}</span>`}</span>`;
  // What has a default is answered if it is left as it is.
  const isOptional = !required && kind !== 'checkbox' && !field.isList && field.initial === '';
  const optional = isOptional && html` <span class="hint">optional</span>`;
  const pick = (type: string, option: string, text: string, place: number) =>
    html`<div class="choice"><input type="${type}" id="${id}-${place}" name="field.${name}" value="${option}"${isChosen(option) && html` checked`}${required && html` required`}> <label for="${id}-${place}">${text}</label></div>`;
  const group = (choices: readonly Html[]) =>
    html`<fieldset${described && html` aria-describedby="${id}-note"`}><legend>${label}${optional}</legend>${note}${choices}</fieldset>\n`;
  switch (kind) {
    case 'checkbox':
      return html`<div class="field"><div class="choice"><input type="checkbox" value="true" ${common}${isChosen('true') && html` checked`}> <label for="${id}">${label}</label></div>${note}</div>\n`;
    case 'yesNo':
      return group([pick('radio', 'true', 'Yes', 0), pick('radio', 'false', 'No', 1)]);
    case 'choices':
      return group(options.map((option, place) => pick('checkbox', option, option, place)));
    case 'choice':
      return labelled(
        html`<select ${common}>${(!required || (one === '' && options.length > 1)) && html`<option value="">${required ? 'Please choose' : ''}</option>`}${options.map((option) => html`<option value="${option}"${isChosen(option) && html` selected`}>${option}</option>`)}</select>`,
      );
    case 'longText':
    case 'lines':
    case 'json':
      return labelled(html`<textarea rows="4" ${common}${maxLength()}>\n${one}</textarea>`);
    case 'number':
      return labelled(
        html`<input type="number" step="${field.step}"${field.min !== undefined && html` min="${field.min}"`}${field.max !== undefined && html` max="${field.max}"`} value="${one}" ${common}>`,
      );
    case 'dateTime':
      return labelled(html`<input type="datetime-local" value="${withoutZone(one)}" ${common}>`);
    default:
      return labelled(html`<input type="${kind}" value="${one}" ${common}${maxLength()}>`);
  }

  function labelled(input: Html): Html {
    const form = forms[kind];
    const shown = form === undefined ? label : html`${label} <span class="hint">${form}</span>`;
    return html`<div class="field"><label for="${id}">${shown}${optional}</label>${note}${input}</div>\n`;
  }

  function maxLength() {
    return field.maxLength !== undefined && html` maxlength="${field.maxLength}"`;
  }
}

// HTML templates. Every value is escaped, unless a template created it.
class Html {
  readonly text: string;
  constructor(text: string) {
    this.text = text;
  }
}

type Value = string | number | Html | undefined | false | readonly Value[];

/** Attributes must be quoted: `<input value="${value}">`. */
function html(parts: TemplateStringsArray, ...values: readonly Value[]): Html {
  return new Html(parts.map((part, n) => part + (n < values.length ? render(values[n]) : '')).join(''));
}

function render(value: Value): string {
  if (value === undefined || value === false) return '';
  if (value instanceof Html) return value.text;
  if (typeof value === 'object') return value.map(render).join('');
  return String(value).replace(/[&"'<>]/g, (character) => `&#${character.charCodeAt(0)};`);
}
