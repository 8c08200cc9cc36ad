// Reads [[language, query], ...] and writes, for each query, the places where its grammar does not go on.

import { readFileSync } from 'node:fs';
import { parser as traceql } from '@grafana/lezer-traceql';
import { parser as promql } from '@prometheus-io/lezer-promql';

const grammars = { traceql, promql };

function faults(language, query) {
  const found = [];
  grammars[language].parse(query).iterate({
    enter(node) {
      if (node.type.isError) found.push(node.from);
    },
  });
  return found;
}

const asked = JSON.parse(readFileSync(0, 'utf8'));
process.stdout.write(JSON.stringify(asked.map(([language, query]) => faults(language, query))));
