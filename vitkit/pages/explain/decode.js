/** Weights of layers, unpacked when first asked for; packing.py says how they lie. */
const unpacked = new Map();

function unpack(layer) {
  if (!unpacked.has(layer)) unpacked.set(layer, inflated(data.layers[layer]));
  return unpacked.get(layer);
}

async function inflated({ heads, content }) {
  const zipped = Uint8Array.from(atob(content), (letter) => letter.charCodeAt(0));
  const stream = new Blob([zipped]).stream().pipeThrough(new DecompressionStream("deflate"));
  const buffer = await new Response(stream).arrayBuffer();
  const rows = heads * data.tokens;
  const prefix = data.prefix.length;
  return {
    heads,
    largest: new Float32Array(buffer, 0, rows),
    second: new Float32Array(buffer, 4 * rows, rows),
    prefix: new Float32Array(buffer, 8 * rows, rows * prefix),
    bytes: new Uint8Array(buffer, (8 + 4 * prefix) * rows),
  };
}

/** What one head gives to each token, from a query. */
function rowOf(layer, head, query) {
  const place = head * data.tokens + query;
  const bytes = layer.bytes.subarray(place * data.tokens, (place + 1) * data.tokens);
  const step = layer.second[place] / 254;
  const row = Array.from(bytes, (byte) => (byte === 255 ? layer.largest[place] : byte * step));
  const count = data.prefix.length;
  for (let token = 0; token < count; token += 1) row[token] = layer.prefix[place * count + token];
  return row;
}

function meanOf(rows) {
  return rows[0].map((_, token) => rows.reduce((sum, row) => sum + row[token], 0) / rows.length);
}

function patchesOf(row) {
  return row.slice(data.prefix.length);
}

/** Of a sorted copy, as NumPy's: linear between neighbours. */
function percentile(values, share) {
  const sorted = [...values].sort((a, b) => a - b);
  const place = share * (sorted.length - 1);
  const low = Math.floor(place);
  return sorted[low] + (sorted[Math.min(low + 1, sorted.length - 1)] - sorted[low]) * (place - low);
}
