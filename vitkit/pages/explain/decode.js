/** Attention weights of layers, unpacked when first needed; packing.py describes the format. */
const unpackedLayers = new Map();

function unpack(layer) {
  if (!unpackedLayers.has(layer)) unpackedLayers.set(layer, inflate(data.layers[layer]));
  return unpackedLayers.get(layer);
}

async function inflate({ heads, content }) {
  if (!("DecompressionStream" in window)) throw new Error(getText("failureUnpack"));
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

/** Returns the weight of each token, for one head and one query. */
function getRow(layer, head, query) {
  const index = head * data.tokens + query;
  const bytes = layer.bytes.subarray(index * data.tokens, (index + 1) * data.tokens);
  const step = layer.second[index] / 254;
  const row = Array.from(bytes, (byte) => (byte === 255 ? layer.largest[index] : byte * step));
  const count = data.prefix.length;
  for (let token = 0; token < count; token += 1) row[token] = layer.prefix[index * count + token];
  return row;
}

function averageRows(rows) {
  return rows[0].map((_, token) => rows.reduce((sum, row) => sum + row[token], 0) / rows.length);
}

function getPatches(row) {
  return row.slice(data.prefix.length);
}

/** Returns the percentile as NumPy does: linear between neighbours. */
function percentile(values, share) {
  const sorted = [...values].sort((a, b) => a - b);
  const position = share * (sorted.length - 1);
  const low = Math.floor(position);
  return sorted[low] + (sorted[Math.min(low + 1, sorted.length - 1)] - sorted[low]) * (position - low);
}
