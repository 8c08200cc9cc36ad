-- What OTLP's JSON means, for ingest and for the views.

create macro otlp_text(value) as coalesce(
    value.stringValue, value.intValue, value.doubleValue, value.boolValue, value.bytesValue,
    to_json(json_extract(value.arrayValue, '$$.values[*].*'))::varchar, value.kvlistValue::varchar
);

create macro otlp_entries(attributes) as map_from_entries(
    list_transform(attributes, lambda a: {'k': a.key, 'v': otlp_text(a.value)})
);

-- map_from_entries refuses a repeated or missing key, which OTLP forbids and the world sends: the first one
-- counts. Looking for them beforehand costs more than what is refused.
create macro otlp_map(attributes) as coalesce(
    try(otlp_entries(attributes)),
    otlp_entries(
        list_filter(
            attributes,
            lambda a, i: a.key is not null and list_position(list_transform(attributes, lambda b: b.key), a.key) = i
        )
    )
);

create macro otlp_pairs(attributes) as otlp_map(from_json(attributes, '[$ATTRIBUTE]'));

-- The first exception event that has the field: how the SDKs' record_exception and most instrumentations say it.
create macro exception_field(events, field) as list_filter(
    flatten(
        list_transform(
            list_filter(
                from_json(events, '[{"name": "VARCHAR", "attributes": [$ATTRIBUTE]}]'), lambda e: e.name = 'exception'
            ),
            lambda e: e.attributes
        )
    ),
    lambda a: a.key = field
)[1].value.stringValue;

create macro finite(text) as case
    when isfinite(try_cast(text as double)) then try_cast(text as double)
end;

-- 0 means unknown, and the largest integer means infinity to a timestamp.
create macro nanoseconds(text) as case
    when try_cast(text as bigint) between 1 and 9223372036854775806 then try_cast(text as bigint)
end;
