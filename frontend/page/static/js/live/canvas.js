/** How is a canvas kept sharp and as wide as its place? */

/** Return a context of a canvas in CSS pixels, cleared: {context, width, height}; null while it is not shown. */
export function prepare(canvas) {
  const { clientWidth: width, clientHeight: height } = canvas;
  if (!width || !height) return null;
  const scale = devicePixelRatio || 1;
  if (canvas.width !== Math.round(width * scale) || canvas.height !== Math.round(height * scale)) {
    canvas.width = Math.round(width * scale);
    canvas.height = Math.round(height * scale);
  }
  const context = canvas.getContext("2d");
  context.setTransform(scale, 0, 0, scale, 0, 0);
  context.clearRect(0, 0, width, height);
  return { context, width, height };
}

/** Return a round number at or above a value, for the end of an axis. */
export function roundUp(value) {
  if (value <= 0) return 1;
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 1.5, 2, 3, 4, 5, 6, 8, 10].map((step) => step * power).find((end) => end >= value * 0.999);
}

/** Write a number as people do: 1,234 or 12.3k. */
export function short(value) {
  const tenths = (number) => number.toFixed(1).replace(/\.0$/, "");
  if (value >= 1e6) return `${tenths(value / 1e6)}M`;
  if (value >= 1e4) return `${tenths(value / 1e3)}k`;
  return value.toLocaleString("en", { maximumFractionDigits: value < 10 ? 1 : 0 });
}
