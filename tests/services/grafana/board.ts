// A dashboard of ours as Grafana's schema has it: each panel with the options and fields of its own kind.

import type { Dashboard, DataQuery, Panel, RowPanel } from '@grafana/schema';
import type * as stat from '@grafana/schema/dist/esm/raw/composable/stat/panelcfg/x/StatPanelCfg_types.gen';
import type * as table from '@grafana/schema/dist/esm/raw/composable/table/panelcfg/x/TablePanelCfg_types.gen';
import type * as text from '@grafana/schema/dist/esm/raw/composable/text/panelcfg/x/TextPanelCfg_types.gen';
import type * as timeseries from '@grafana/schema/dist/esm/raw/composable/timeseries/panelcfg/x/TimeSeriesPanelCfg_types.gen';

// JSON has the value of an enum's member, never the member, which is all that TypeScript takes.
type Json<T> = T extends string ? `${T}`
  : T extends readonly (infer E)[] ? Json<E>[]
  : T extends object ? { [K in keyof T]: Json<T[K]> }
  : T;

// What a query says beyond this is known to its data source only: parse.mjs reads it.
type Target = DataQuery & { [key: string]: unknown };

type Kind<Type extends string, Options, Field = Record<string, never>> =
  Omit<Panel<Options, Field>, 'type' | 'options' | 'targets' | 'fieldConfig'> & {
    type: Type;
    options: Partial<Options>;
    targets?: Target[];
    fieldConfig?: { defaults: Omit<NonNullable<Panel['fieldConfig']>['defaults'], 'custom'> & { custom?: Partial<Field> };
                    overrides: NonNullable<Panel['fieldConfig']>['overrides'] };
  };

type Shown =
  | Kind<'stat', stat.Options>
  | Kind<'table', table.Options, table.FieldConfig>
  | Kind<'text', text.Options>
  | Kind<'timeseries', timeseries.Options, timeseries.FieldConfig>;

type Row = Omit<RowPanel, 'type' | 'panels'> & { type: 'row'; panels: Shown[] };

export type Board = Json<Omit<Partial<Dashboard>, 'panels'> & { panels: (Shown | Row)[] }>;
