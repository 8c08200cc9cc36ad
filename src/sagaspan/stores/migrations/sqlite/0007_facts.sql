create table facts (
  namespace text not null,
  name      text not null,
  value     text not null,
  primary key (namespace, name)
) strict, without rowid;
