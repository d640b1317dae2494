import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.security.MessageDigest;
import java.util.HexFormat;
import org.apache.kafka.common.compress.Compression;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.record.TimestampType;
import org.apache.kafka.common.record.internal.CompressionType;
import org.apache.kafka.common.record.internal.MemoryRecords;
import org.apache.kafka.common.record.internal.MemoryRecordsBuilder;
import org.apache.kafka.common.record.internal.MutableRecordBatch;
import org.apache.kafka.common.record.internal.Record;
import org.apache.kafka.common.record.internal.RecordBatch;
import org.apache.kafka.common.utils.Utils;

/**
 * Reads the batches of a file and prints what is in them; an uncompressed batch is written again by
 * Kafka's own builder, and compared.
 */
public class ReadBatches {
    static String show(byte[] bytes) throws Exception {
        if (bytes == null) return "null";
        if (bytes.length < 20) return HexFormat.of().formatHex(bytes);
        byte[] digest = MessageDigest.getInstance("SHA-256").digest(bytes);
        return bytes.length + ":" + HexFormat.of().formatHex(digest);
    }

    static byte[] bytes(ByteBuffer buffer) {
        return buffer == null ? null : Utils.toArray(buffer);
    }

    public static void main(String[] arguments) throws Exception {
        ByteBuffer all = ByteBuffer.wrap(Files.readAllBytes(Path.of(arguments[0])));
        StringBuilder out = new StringBuilder();
        for (MutableRecordBatch batch : MemoryRecords.readableRecords(all).batches()) {
            batch.ensureValid();
            MemoryRecordsBuilder again = MemoryRecords.builder(
                ByteBuffer.allocate(batch.sizeInBytes() + 100), (byte) 2, Compression.NONE,
                TimestampType.CREATE_TIME, 0L, -1L, batch.producerId(), batch.producerEpoch(),
                batch.baseSequence(), batch.isTransactional(), RecordBatch.NO_PARTITION_LEADER_EPOCH);
            StringBuilder records = new StringBuilder();
            for (Record record : batch) {
                record.ensureValid();
                byte[] key = bytes(record.key()), value = bytes(record.value());
                records.append(record.offset()).append(' ').append(record.timestamp())
                    .append(' ').append(show(key)).append(' ').append(show(value));
                for (Header header : record.headers())
                    records.append(' ')
                        .append(show(header.key().getBytes(StandardCharsets.UTF_8)))
                        .append('=').append(show(header.value()));
                records.append('\n');
                if (batch.compressionType() == CompressionType.NONE)
                    again.append(record.timestamp(), key, value, record.headers());
            }
            boolean same = false;
            if (batch.compressionType() == CompressionType.NONE) {
                ByteBuffer ours = ByteBuffer.allocate(batch.sizeInBytes());
                batch.writeTo(ours);
                ours.flip();
                same = again.build().buffer().equals(ours);
            }
            out.append("batch ").append(batch.compressionType().name).append(' ')
                .append(batch.countOrNull()).append(' ').append(batch.maxTimestamp()).append(' ')
                .append(batch.producerId()).append(' ').append(batch.producerEpoch()).append(' ')
                .append(batch.baseSequence()).append(' ').append(batch.isTransactional())
                .append(same ? " same bytes\n" : "\n").append(records);
        }
        System.out.print(out);
    }
}
