// Reads the parts of OpenAPI 3.x that the reader shows. Pure: a document in, plain facts out.

/** Schemas may contain themselves; nobody reads deeper than this. */
const DEPTH_MAX = 6;
const METHODS = ["get", "post", "put", "patch", "delete", "head", "options"];

/** Follows `$ref`s inside the document. What cannot be followed is an empty schema. */
export function resolve(doc, node) {
  for (let hops = 0; node && typeof node.$ref === "string"; hops += 1) {
    if (hops > 16 || !node.$ref.startsWith("#/")) return {};
    node = node.$ref.slice(2).split("/")
      .map((step) => step.replaceAll("~1", "/").replaceAll("~0", "~"))
      .reduce((at, step) => at?.[step], doc);
  }
  return node ?? {};
}

export const refName = (node) => (typeof node?.$ref === "string" ? node.$ref.split("/").at(-1) : null);

/** `allOf` is one object in several pieces. */
function merged(doc, node) {
  const schema = resolve(doc, node);
  if (!Array.isArray(schema.allOf)) return schema;
  return [...schema.allOf, { ...schema, allOf: undefined }].reduce((whole, piece) => {
    const part = merged(doc, piece);
    return {
      ...whole, ...part,
      properties: { ...whole.properties, ...part.properties },
      required: [...(whole.required ?? []), ...(part.required ?? [])],
    };
  }, {});
}

const isNull = (schema) => schema.type === "null";

/** "integer (int64)", "array of Order", "string or null". */
export function typeName(doc, node, depth = 0) {
  const schema = merged(doc, node);
  const choices = schema.oneOf ?? schema.anyOf;
  if (choices && depth < DEPTH_MAX) {
    return [...new Set(choices.map((choice) => refName(choice) ?? typeName(doc, choice, depth + 1)))].join(" or ");
  }
  const types = [schema.type ?? (schema.properties ? "object" : schema.enum ? "string" : "any")].flat();
  return types.map((type) => {
    if (type === "array" && depth < DEPTH_MAX) {
      return `array of ${refName(schema.items) ?? typeName(doc, schema.items, depth + 1)}`;
    }
    return schema.format && type !== "null" ? `${type} (${schema.format})` : type;
  }).join(" or ");
}

/** The fields of an object schema (or of what an array holds), each with its own fields nested. */
export function fields(doc, node, depth = 0) {
  if (depth >= DEPTH_MAX) return [];
  const schema = merged(doc, node);
  if (schema.items) return fields(doc, schema.items, depth + 1);
  const choice = (schema.oneOf ?? schema.anyOf)?.find((one) => !isNull(resolve(doc, one)));
  if (choice && !schema.properties) return fields(doc, choice, depth + 1);
  return Object.entries(schema.properties ?? {}).map(([name, property]) => {
    const facts = merged(doc, property);
    return {
      name,
      type: refName(property) && facts.enum ? refName(property) : typeName(doc, property),
      required: (schema.required ?? []).includes(name),
      description: property.description ?? facts.description ?? "",
      values: enumOf(doc, property),
      fallback: facts.default,
      example: facts.example ?? facts.examples?.[0],
      fields: fields(doc, property, depth + 1),
    };
  });
}

/** The values a schema allows, also when it is a choice of constants. */
export function enumOf(doc, node) {
  const schema = merged(doc, node);
  if (schema.enum) return schema.enum;
  if (schema.items) return enumOf(doc, schema.items);
  const constants = (schema.oneOf ?? schema.anyOf ?? []).map((one) => resolve(doc, one))
    .filter((one) => !isNull(one)).flatMap((one) => one.enum ?? ("const" in one ? [one.const] : [undefined]));
  return constants.length > 0 && !constants.includes(undefined) ? constants : [];
}

/** A value of this shape: the given example, or one made up from the types. */
export function example(doc, node, depth = 0) {
  const schema = merged(doc, node);
  const given = schema.example ?? schema.examples?.[0] ?? schema.default ?? schema.const ?? enumOf(doc, schema)[0];
  if (given !== undefined) return given;
  if (depth >= DEPTH_MAX) return null;
  const choice = (schema.oneOf ?? schema.anyOf)?.find((one) => !isNull(resolve(doc, one)));
  if (choice) return example(doc, choice, depth + 1);
  const type = [schema.type].flat().find((one) => one !== "null");
  if (type === "object" || schema.properties) {
    const entries = Object.entries(schema.properties ?? {});
    return Object.fromEntries(entries.map(([name, property]) => [name, example(doc, property, depth + 1)]));
  }
  if (type === "array") return [example(doc, schema.items, depth + 1)];
  return { integer: schema.minimum ?? 0, number: schema.minimum ?? 0, boolean: false, string: "string" }[type] ?? null;
}

/** The first media type's schema and example of a request body or a response. */
export function content(doc, node) {
  const { content: types = {}, description = "", required = false } = resolve(doc, node);
  const [mediaType] = Object.keys(types);
  if (!mediaType) return { description, required, mediaType: null, schema: null, sample: undefined };
  const { schema, example: given, examples } = types[mediaType];
  const named = Object.values(examples ?? {}).map((one) => resolve(doc, one).value)[0];
  const sample = given ?? named ?? (schema ? example(doc, schema) : undefined);
  return { description, required, mediaType, schema, sample };
}

/** Every operation, in the document's order, with path-level parameters taken in. */
export function operations(doc) {
  return Object.entries(doc.paths ?? {}).flatMap(([path, node]) => {
    const item = resolve(doc, node);
    return METHODS.filter((method) => item[method]).map((method) => {
      const operation = item[method];
      const own = (operation.parameters ?? []).map((p) => resolve(doc, p));
      const shared = (item.parameters ?? []).map((p) => resolve(doc, p))
        .filter((p) => !own.some((o) => o.name === p.name && o.in === p.in));
      return {
        method: method.toUpperCase(), path, operation,
        id: operation.operationId ?? `${method}-${path}`.replaceAll(/[^a-z0-9]+/gi, "-"),
        tags: operation.tags?.length ? operation.tags : [""],
        parameters: [...shared, ...own],
      };
    });
  });
}

export function matches(entry, filter) {
  const { summary = "", description = "" } = entry.operation;
  const text = [entry.method, entry.path, summary, description, ...entry.tags].join(" ").toLowerCase();
  return filter.toLowerCase().split(/\s+/).every((word) => text.includes(word));
}

/** The address "try it" sends to. Empty optional values are left out. */
export function address(entry, values) {
  const path = entry.path.replaceAll(/\{(\w+)\}/g, (whole, name) => encodeURIComponent(values[`path:${name}`] ?? ""));
  const query = new URLSearchParams(entry.parameters
    .filter((p) => p.in === "query" && values[`query:${p.name}`])
    .map((p) => [p.name, values[`query:${p.name}`]])).toString();
  return query ? `${path}?${query}` : path;
}
