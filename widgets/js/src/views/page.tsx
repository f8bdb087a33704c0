// The live form of every view that is a page (`widgets/page.py`): a heading, then sections; those with a title are tabs.
import type { ViewProps } from "../frame.tsx";
import type { Page, Row, Section } from "../generated.ts";
import { useKept } from "../kept.ts";
import { Filter, Tabs } from "../parts.tsx";
import { Button, Heading, SectionView, type Id } from "../sections.tsx";

export function PageView({ data, client }: ViewProps) {
  const page = data["page"] as unknown as Page;
  const [filter, setFilter] = useKept(client, "filter", page.filter ?? "");
  const [tab, setTab] = useKept(client, "tab", "");
  const [chosen, setChosen] = useKept<readonly Id[]>(client, "chosen", []);
  const marks = { chosen, press: (ids: readonly Id[]) => setChosen(String(ids) === String(chosen) ? [] : ids) };
  const draw = (section: Section, i: number) => (
    <SectionView
      key={i}
      section={section}
      rows={"key" in section ? (data[section.key] as unknown as Row[]) : undefined}
      {...{ client, filter, marks }}
    />
  );
  const titles = [...new Set(page.sections.map((s) => s.title))].filter(Boolean);
  return (
    <>
      <Heading page={page}>
        <span class="space" />
        {page.filter !== null && <Filter value={filter} set={setFilter} of={page.filters} />}
        {page.actions.map((action) => (
          <Button key={action.label} {...{ action, client }} />
        ))}
      </Heading>
      {page.sections.filter((s) => !s.title).map(draw)}
      {titles.length > 0 && (
        <Tabs
          label={page.title}
          at={tab}
          set={setTab}
          tabs={titles.map((title) => ({
            key: title,
            label: title,
            body: () => page.sections.filter((s) => s.title === title).map(draw),
          }))}
        />
      )}
    </>
  );
}
