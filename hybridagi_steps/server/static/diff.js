// What two lists have in common, and where they differ: the longest common subsequence.
// Reference: Wagner and Fischer 1974, "The string-to-string correction problem".

const MOST = 1500;

// Pairs [a, b] in order; what only one list has stands beside null.
export function aligned(left, right, key = (value) => value) {
  if (left.length * right.length > MOST * MOST) {
    return Array.from({ length: Math.max(left.length, right.length) }, (_, at) => [left[at] ?? null, right[at] ?? null]);
  }
  const [a, b] = [left.map(key), right.map(key)];
  const table = Array.from({ length: a.length + 1 }, () => new Uint16Array(b.length + 1));
  for (let i = a.length - 1; i >= 0; i -= 1) {
    for (let j = b.length - 1; j >= 0; j -= 1) {
      table[i][j] = a[i] === b[j] ? table[i + 1][j + 1] + 1 : Math.max(table[i + 1][j], table[i][j + 1]);
    }
  }
  const pairs = [];
  for (let i = 0, j = 0; i < a.length || j < b.length;) {
    if (i < a.length && j < b.length && a[i] === b[j]) pairs.push([left[i++], right[j++]]);
    else if (j >= b.length || (i < a.length && table[i + 1][j] >= table[i][j + 1])) pairs.push([left[i++], null]);
    else pairs.push([null, right[j++]]);
  }
  return pairs;
}

// The words of a text as [word, whether the other text lacks it there].
export function markedWords(one, other) {
  const words = (value) => value.split(/(?<=\s)/);
  return aligned(words(one), words(other), (word) => word.trim()).filter(([word]) => word !== null).map(([word, twin]) => [word, twin === null]);
}
