-- How a partition is, in one small question: who answers, can it be written, what waits, what changed.
--
-- KEYS  probe  backlog  orders  moves  given  settled  changed      ARGV  changes seen  probe_kept_ms
-- Answers {server, why it cannot be written, backlog, oldest_ms, open moves, notes of moves, changes,
-- {items changed since}}. oldest_ms is -1 if nothing waits; changes is -1 if none was ever noted.
local written = redis.pcall('SET', KEYS[1], 1, 'PX', ARGV[2])
local server = string.match(redis.call('INFO', 'server'), 'run_id:(%x+)') or '0'
local backlog = tonumber(redis.call('GET', KEYS[2]) or '0')
local oldest = -1
if backlog > 0 then
  local first = redis.call('XRANGE', KEYS[3], '-', '+', 'COUNT', 1)[1]
  if first then
    local time = redis.call('TIME')
    local came = tonumber(string.match(first[1], '^(%d+)'))
    oldest = math.max(0, time[1] * 1000 + math.floor(time[2] / 1000) - came)
  end
end
local changes, items = tonumber(redis.call('ZSCORE', KEYS[7], '') or '-1'), {}
if changes > tonumber(ARGV[1]) then
  for _, item in ipairs(redis.call('ZRANGEBYSCORE', KEYS[7], '(' .. ARGV[1], '+inf')) do
    if item ~= '' then items[#items + 1] = tonumber(item) end
  end
end
-- As a number that needs no more digits than Lua has.
return {tonumber(string.sub(server, 1, 12), 16), written.err or '', backlog, oldest,
  redis.call('HLEN', KEYS[4]), redis.call('EXISTS', KEYS[5], KEYS[6]), changes, items}
