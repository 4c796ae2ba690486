/* Cuts a query as search.py cuts the pages. */
var splitQuery = (query) =>
  (query.match(
    /\d{1,3}(?:,\d{3})+(?!\d|,\d)|\d+(?:\.\d+)+(?:e[-+−]?\d+)?|\d+e[-+−]\d+|√ ?[({]?[\p{L}\p{N}_]+|[\p{L}\p{N}_]+|[∀-∑∓-⋿±×÷→←]/giu
  ) || []).map((word) => word.replace(/[,({]| /g, ""));

/* Sphinx throws away whole numbers: they are asked for all the same. */
{
  const parseQuery = Search._parseQuery;
  Search._parseQuery = (query) => {
    const parsed = parseQuery(query);
    const [, searchTerms, , highlightTerms] = parsed;
    for (const number of splitQuery(query).filter((word) => /^\d+$/.test(word))) {
      searchTerms.add(number);
      highlightTerms.add(number);
    }
    if (SPHINX_HIGHLIGHT_ENABLED) localStorage.setItem("sphinx_highlight_terms", [...highlightTerms].join(" "));
    return parsed;
  };
}
