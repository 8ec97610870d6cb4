// The fields of a question's form, from the JSON Schema of its answer. The hosted form and the dashboard share them. A
// value that no field can express, such as a list of objects, is entered as JSON.

/** The parts of a question that make its form. */
export interface AskedForm {
  schema: Record<string, unknown>;
  actions: readonly { answer?: Record<string, unknown> | undefined }[];
}

export interface FormField {
  /** Of a field of an object it has the names of both: `address.city`. */
  name: string;
  path: readonly string[];
  label: string;
  hint: string | undefined;
  kind: FieldKind;
  required: boolean;
  /** The options of a choice, as they are shown. */
  options: readonly string[];
  /** The value of each option. */
  values: readonly unknown[];
  min: number | undefined;
  max: number | undefined;
  step: 'any' | '1';
  maxLength: number | undefined;
  initial: string | readonly string[];
  /** Left empty, the answer has null for it. */
  emptyIsNull: boolean;
  /** Left empty, the answer has an empty list for it: it is required, or its default must not count. */
  isList: boolean;
  /** The objects that the field is part of, outermost first. */
  objects: readonly ObjectField[];
}

type FieldKind =
  | 'text'
  | 'longText'
  | 'number'
  | 'date'
  | 'dateTime'
  | 'email'
  | 'url'
  | 'yesNo'
  | 'checkbox'
  | 'choice'
  | 'choices'
  | 'lines'
  | 'json';

interface ObjectField {
  required: boolean;
  emptyIsNull: boolean;
}

type Property = Record<string, unknown>;

// Objects within objects; deeper ones are entered as JSON.
const maxDepth = 3;

/** Omits fields that every action sets. */
export function formFields({ schema, actions }: AskedForm): FormField[] {
  const isSetBy = (name: string, { answer }: AskedForm['actions'][number]) =>
    answer !== undefined && Object.hasOwn(answer, name);
  return propertiesOf(schema).flatMap(({ name, property, required }) => {
    if (actions.length > 0 && actions.every((action) => isSetBy(name, action))) return [];
    // An action that sets the field needs no entry.
    const isNeeded = required && !actions.some((action) => isSetBy(name, action));
    return fieldsOf({ path: [name], label: '', objects: [] }, property, isNeeded);
  });
}

function propertiesOf(schema: Property): { name: string; property: Property; required: boolean }[] {
  const required = new Set((schema.required ?? []) as string[]);
  return Object.entries((schema.properties ?? {}) as Record<string, Property>).map(([name, property]) => {
    return { name, property, required: required.has(name) };
  });
}

interface Place {
  path: readonly string[];
  /** The label of the objects around it. */
  label: string;
  objects: readonly ObjectField[];
}

function fieldsOf(place: Place, given: Property, required: boolean): FormField[] {
  const { path, objects } = place;
  const { property, nullable } = withoutNull(given);
  const own = text(property.title) ?? humanize(path.at(-1) ?? '');
  const label = place.label === '' ? own : `${place.label}: ${own}`;
  const emptyIsNull = nullable && required;
  const kind = kindOf(property, required);
  if (kind === 'json' && hasFields(property) && path.length < maxDepth) {
    const inner = { label, objects: [...objects, { required, emptyIsNull }] };
    return propertiesOf(property).flatMap((one) =>
      fieldsOf({ ...inner, path: [...path, one.name] }, one.property, one.required),
    );
  }
  const values = valuesOf(kind === 'choices' ? itemsOf(property) : property);
  const initial = initialOf(property.default, kind);
  const isNeeded = required && !nullable && objects.every((object) => object.required && !object.emptyIsNull);
  return [
    {
      name: path.join('.'),
      path,
      label,
      hint: text(property.description),
      kind,
      required: isNeeded && !['checkbox', 'choices', 'lines'].includes(kind),
      options: values.map(String),
      values,
      min: numberOf(property.minimum),
      max: numberOf(property.maximum),
      step: property.type === 'integer' ? '1' : 'any',
      maxLength: numberOf(property.maxLength),
      initial,
      emptyIsNull,
      isList: (kind === 'choices' || kind === 'lines') && (required || initial.length > 0),
      objects,
    },
  ];
}

/** Simplifies `type: ['string', 'null']`, and `anyOf` of one alternative and null, or of constants. */
function withoutNull(given: Property): { property: Property; nullable: boolean } {
  const { anyOf, ...outer } = given;
  if (Array.isArray(anyOf)) {
    const alternatives = (anyOf as Property[]).filter(({ type }) => type !== 'null');
    const nullable = alternatives.length < anyOf.length;
    const [only] = alternatives;
    if (alternatives.length === 1) return { property: { ...only, ...outer }, nullable };
    const values = alternatives.map(valuesOf);
    const isChoice = values.every((some) => some.length > 0);
    return { property: isChoice ? { ...outer, enum: values.flat() } : given, nullable: nullable && isChoice };
  }
  if (!Array.isArray(given.type)) return { property: given, nullable: false };
  const types = given.type.filter((type) => type !== 'null');
  const property = { ...given, type: types.length === 1 ? types[0] : types };
  return { property, nullable: types.length < given.type.length };
}

function hasFields({ type, properties, additionalProperties }: Property): boolean {
  const hasOthers = typeof additionalProperties === 'object';
  return type === 'object' && typeof properties === 'object' && Object.keys(properties ?? {}).length > 0 && !hasOthers;
}

// Longer texts get several lines.
const maxLineLength = 200;

function kindOf(property: Property, required: boolean): FieldKind {
  if (valuesOf(property).length > 0) return 'choice';
  switch (property.type) {
    case 'boolean':
      return required && property.default === undefined ? 'yesNo' : 'checkbox';
    case 'number':
    case 'integer':
      return 'number';
    case 'array':
      if (valuesOf(itemsOf(property)).length > 0) return 'choices';
      return itemsOf(property).type === 'string' ? 'lines' : 'json';
    case 'string':
      return kindOfText(property);
    default:
      return 'json';
  }
}

function kindOfText({ format, pattern, maxLength }: Property): FieldKind {
  switch (format) {
    case 'date':
    case 'email':
      return format;
    case 'date-time':
      return 'dateTime';
    case 'uri':
      return 'url';
    default:
      if (format !== undefined || pattern !== undefined) return 'text';
      return (numberOf(maxLength) ?? Number.POSITIVE_INFINITY) > maxLineLength ? 'longText' : 'text';
  }
}

function itemsOf({ items }: Property): Property {
  return typeof items === 'object' && items !== null ? (items as Property) : {};
}

/** The values of a choice; none if they are objects or lists. */
function valuesOf(property: Property): unknown[] {
  const values = 'const' in property ? [property.const] : Array.isArray(property.enum) ? property.enum : [];
  return values.every((value) => ['string', 'number', 'boolean'].includes(typeof value)) ? values : [];
}

function initialOf(value: unknown, kind: FieldKind): string | readonly string[] {
  if (value === undefined || value === null) return '';
  if (kind === 'choices') return Array.isArray(value) ? value.map(String) : [];
  if (kind === 'lines' && Array.isArray(value)) return value.join('\n');
  return kind === 'json' ? JSON.stringify(value, null, 2) : String(value);
}

function text(value: unknown): string | undefined {
  return typeof value === 'string' && value !== '' ? value : undefined;
}

function numberOf(value: unknown): number | undefined {
  return typeof value === 'number' && Math.abs(value) < Number.MAX_SAFE_INTEGER ? value : undefined;
}

/** `dueDate` and `due_date` become `Due date`. */
function humanize(name: string): string {
  const words = name
    .replaceAll(/([a-z])([A-Z])/g, '$1 $2')
    .replaceAll(/[_-]+/g, ' ')
    .trim()
    .toLowerCase();
  return words === '' ? name : words.charAt(0).toUpperCase() + words.slice(1);
}
