-- What the seeds call this table, with times as they write them. A message is
-- kept as it was received, so raw_content is content.

create view inbox_messages as
select id, from_address, content,
-- only sqlite
    strftime('%Y-%m-%dT%H:%M:%fZ', received_at / 1000000.0, 'unixepoch') as received_at,
    case when processed_at > 0 then strftime('%Y-%m-%dT%H:%M:%fZ', processed_at / 1000000.0, 'unixepoch') end as processed_at,
-- only postgres
    to_char(to_timestamp(received_at / 1000000.0) at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.MS"Z"') as received_at,
    case when processed_at > 0 then to_char(to_timestamp(processed_at / 1000000.0) at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.MS"Z"') end as processed_at,
-- both
    case when reply_to <> '' then reply_to end as reply_to,
    to_address, content as raw_content, status, retry_count, max_retries, signed_at, signature
from mail;
