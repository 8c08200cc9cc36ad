alter table runs add column ahead text;
