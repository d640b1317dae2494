import java.nio.ByteBuffer;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.zip.CRC32;
import org.apache.kafka.common.record.internal.MemoryRecords;
import org.apache.kafka.common.record.internal.MutableRecordBatch;
import org.apache.kafka.common.record.internal.Record;
import org.apache.kafka.common.utils.Utils;

/** Reads the message sets (formats v0 and v1) of a file and prints what is in them. */
public class ReadMessageSets {
    static long crc(ByteBuffer buffer) {
        if (buffer == null) return -1;
        CRC32 crc = new CRC32();
        crc.update(Utils.toArray(buffer));
        return crc.getValue();
    }

    public static void main(String[] arguments) throws Exception {
        ByteBuffer all = ByteBuffer.wrap(Files.readAllBytes(Path.of(arguments[0])));
        StringBuilder out = new StringBuilder();
        for (MutableRecordBatch batch : MemoryRecords.readableRecords(all).batches()) {
            batch.ensureValid();
            for (Record record : batch) {
                record.ensureValid();
                out.append(batch.magic()).append(' ').append(record.offset()).append(' ')
                    .append(record.timestamp()).append(' ').append(crc(record.key()))
                    .append(' ').append(crc(record.value())).append('\n');
            }
        }
        System.out.print(out);
    }
}
